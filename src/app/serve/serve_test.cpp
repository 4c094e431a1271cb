#include "app/serve/serve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "app/chat/chat_model_testing.h"
#include "app/generate/generate.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "report/stranger_testing.h"
#include "session/loaded_model.h"
#include "weights/adapter.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A server of the small chat model.
class Serve : public testing::Test {
 protected:
  Serve()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_serve_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    write_chat_model(folder_ / "model");
    options_.model = (folder_ / "model").string();
    options_.threads = 2;
    options_.port = 0;
    options_.batch_size = 3;
    options_.max_length = 64;
  }
  ~Serve() override {
    stop();
    fs::remove_all(folder_);
  }

  void start() {
    std::promise<int> port;
    options_.started = [&](int at) { port.set_value(at); };
    options_.ends = [this] { return ended_.load(); };
    thread_ = std::thread([this] { EXPECT_EQ(run_serve(options_), 0); });
    port_ = port.get_future().get();
  }
  void stop() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }

  httplib::Client client() const {
    httplib::Client result("127.0.0.1", port_);
    result.set_read_timeout(60);
    return result;
  }
  std::pair<int, Json> post(const std::string& path, const Json& body, const httplib::Headers& headers = {}) const {
    const auto result = client().Post(path.c_str(), headers, body.dump(), "application/json");
    if (!result) return {0, nullptr};
    return {result->status, Json::parse(result->body, nullptr, false)};
  }
  static Json chat(const std::string& text, Json more = Json::object()) {
    Json body = {{"messages", {{{"role", "user"}, {"content", text}}}}, {"max_tokens", 8}, {"temperature", 0}};
    body.update(more);
    return body;
  }
  static std::string content(const std::pair<int, Json>& answer) {
    EXPECT_EQ(answer.first, 200) << answer.second;
    return answer.first == 200 ? answer.second["choices"][0]["message"]["content"].get<std::string>() : "";
  }
  /// What hone generate answers, with an adapter or without.
  std::string generated(const std::string& text, const fs::path& adapter = {}) const {
    GenerateOptions options;
    options.model = (folder_ / "model").string();
    options.adapter = adapter.string();
    options.prompt = text;
    options.threads = 2;
    options.sampling.max_new_tokens = 8;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(run_generate(options, {}), 0);
    testing::internal::GetCapturedStderr();
    std::string out = testing::internal::GetCapturedStdout();
    if (out.ends_with('\n')) out.pop_back();
    return out;
  }

  /// Why it does not start.
  std::string refusal() const {
    try {
      run_serve(options_);
    } catch (const UserError& error) {
      return error.message();
    }
    return "none";
  }
  /// The names of /v1/models.
  std::vector<std::string> served() const {
    std::vector<std::string> names;
    const auto list = client().Get("/v1/models");
    EXPECT_TRUE(list);
    const Json models = list ? Json::parse(list->body)["data"] : Json::array();
    for (const Json& model : models) names.push_back(model["id"]);
    return names;
  }
  /// An adapter that was trained with the router beside it.
  fs::path adapter_with_router() const {
    LoadedModel model(folder_ / "model", DType::kF32);
    TrainableOptions options;
    options.train_base = false;
    LoraOptions& lora = options.lora.emplace();
    lora.r = 2;
    lora.target_modules = {"attention"};
    lora.init = LoraInit::kRandom;
    model.set_trainable(options);
    ThreadPool pool(2);
    model.load({}, pool, 1);
    const fs::path folder = folder_ / "with_router";
    fs::create_directories(folder);
    AdapterSaveOptions saved;
    saved.lora = *model.lora();
    save_adapter(folder, model.store(), saved);
    return folder;
  }

  const fs::path folder_;
  ServeOptions options_;
  int port_ = 0;

 private:
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

TEST_F(Serve, AnswersAsGenerateDoesWhoeverElseAsks) {
  const std::vector<std::string> texts = {"a", "Hello", "What is this?", "x y z", "1 2 3 4 5 6 7"};
  std::vector<std::string> expected;
  for (const std::string& text : texts) expected.push_back(generated(text));
  start();
  std::vector<std::string> answers(20);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < answers.size(); ++i) {
    clients.emplace_back([&, i] { answers[i] = content(post("/v1/chat/completions", chat(texts[i % texts.size()]))); });
  }
  for (std::thread& thread : clients) thread.join();
  for (size_t i = 0; i < answers.size(); ++i) EXPECT_EQ(answers[i], expected[i % texts.size()]) << i;
}

TEST_F(Serve, StreamsWhatItAnswersWhole) {
  start();
  const std::string whole = content(post("/v1/chat/completions", chat("Hello")));
  const auto result = client().Post(
      "/v1/chat/completions", chat("Hello", {{"stream", true}, {"stream_options", {{"include_usage", true}}}}).dump(),
      "application/json");
  ASSERT_TRUE(result);
  EXPECT_THAT(result->get_header_value("Content-Type"), HasSubstr("text/event-stream"));
  std::string text, rest = result->body, finish;
  int64_t usage = 0;
  bool done = false;
  for (size_t end = rest.find("\n\n"); end != std::string::npos; end = rest.find("\n\n")) {
    const std::string event = rest.substr(0, end);
    rest.erase(0, end + 2);
    ASSERT_TRUE(event.starts_with("data: ")) << event;
    if (event == "data: [DONE]") {
      done = true;
      continue;
    }
    const Json json = Json::parse(event.substr(6));
    if (json.contains("usage")) usage = json["usage"]["completion_tokens"].get<int64_t>();
    for (const Json& choice : json["choices"]) {
      text += choice["delta"].value("content", "");
      if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"].get<std::string>();
    }
  }
  EXPECT_EQ(text, whole);
  EXPECT_EQ(finish, "length");
  EXPECT_EQ(usage, 8);
  EXPECT_TRUE(done);
}

TEST_F(Serve, SamplesBySeedAndGivesSeveralAnswers) {
  start();
  const Json drawn = {{"temperature", 1.5}, {"n", 3}, {"seed", 5}};
  const auto first = post("/v1/chat/completions", chat("Hello", drawn)).second["choices"];
  EXPECT_EQ(first.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(first[i]["index"], i);
  EXPECT_EQ(post("/v1/chat/completions", chat("Hello", drawn)).second["choices"], first);
  EXPECT_NE(first[0]["message"], first[1]["message"]);
  Json other = drawn;
  other["seed"] = 6;
  EXPECT_NE(post("/v1/chat/completions", chat("Hello", other)).second["choices"], first);
  other.erase("seed");
  EXPECT_NE(post("/v1/chat/completions", chat("Hello", other)).second["choices"],
            post("/v1/chat/completions", chat("Hello", other)).second["choices"]);
}

TEST_F(Serve, ContinuesTextsAndTellsLikelihoods) {
  start();
  const auto [status, json] =
      post("/v1/completions", {{"prompt", {"ab", "c"}}, {"max_tokens", 4}, {"temperature", 0}, {"logprobs", 2}});
  ASSERT_EQ(status, 200) << json;
  ASSERT_EQ(json["choices"].size(), 2u);
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  const Json& likely = json["choices"][0]["logprobs"];
  EXPECT_EQ(likely["tokens"].size(), 4u);
  EXPECT_EQ(likely["top_logprobs"][0].size(), 2u);
  double best = -INFINITY;
  for (const auto& [token, value] : likely["top_logprobs"][0].items()) best = std::max(best, value.get<double>());
  EXPECT_EQ(likely["token_logprobs"][0], best) << "greedy";
  EXPECT_EQ(post("/v1/completions", {{"prompt", "ab"}, {"temperature", 0}}).second["usage"]["completion_tokens"], 16);
}

TEST_F(Serve, StopsAtATextAndAtTheLength) {
  start();
  const std::string whole = content(post("/v1/chat/completions", chat("Hello", {{"max_tokens", 20}})));
  size_t at = 1;  // where two ASCII characters follow: other bytes may be part of a character
  while (at + 2 < whole.size() && (whole[at] < ' ' || whole[at + 1] < ' ')) ++at;
  const std::string stop = whole.substr(at, 2);
  const auto stopped = post("/v1/chat/completions", chat("Hello", {{"max_tokens", 20}, {"stop", {stop, "never"}}}));
  EXPECT_EQ(content(stopped), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(stopped.second["choices"][0]["finish_reason"], "stop");
  Json all = chat("Hello");
  all.erase("max_tokens");
  const auto longest = post("/v1/chat/completions", all).second;
  EXPECT_LE(longest["usage"]["total_tokens"], 64);
}

TEST_F(Serve, IgnoresTheEndOfAnAnswerWhereItIsAsked) {
  options_.max_length = 128;
  start();
  Json drawn = {{"temperature", 1e4}, {"top_k", 0}, {"n", 3}, {"max_tokens", 40}, {"seed", 0}};  // any token
  const auto ends = [](const Json& answer) {
    const Json& choices = answer["choices"];
    return std::count_if(choices.begin(), choices.end(), [](const Json& c) { return c["finish_reason"] == "stop"; });
  };
  Json answer = post("/v1/chat/completions", chat("a", drawn)).second;
  for (int seed = 1; seed < 50 && ends(answer) == 0; ++seed) {
    drawn["seed"] = seed;
    answer = post("/v1/chat/completions", chat("a", drawn)).second;
  }
  ASSERT_GT(ends(answer), 0);
  drawn["ignore_eos"] = true;
  answer = post("/v1/chat/completions", chat("a", drawn)).second;
  EXPECT_EQ(ends(answer), 0);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3 * 40);
}

TEST_F(Serve, ServesAnAdapterBesideItsBase) {
  options_.adapter = (kChatModelCase / "lora_attention_init").string();
  options_.name = "tuned";
  start();
  const auto list = client().Get("/v1/models");
  ASSERT_TRUE(list);
  const Json models = Json::parse(list->body)["data"];
  ASSERT_EQ(models.size(), 2u);
  EXPECT_EQ(models[0]["id"], "tuned");
  EXPECT_EQ(models[1]["id"], "model");
  std::vector<std::string> tuned(6), base(6);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < 6; ++i) {
    clients.emplace_back([&, i] { tuned[i] = content(post("/v1/chat/completions", chat("Hello"))); });
    clients.emplace_back([&, i] {
      base[i] = content(post("/v1/chat/completions", chat("Hello", {{"model", "model"}})));
    });
  }
  for (std::thread& thread : clients) thread.join();
  const std::string plain = generated("Hello");
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(tuned[i], tuned[0]);
    EXPECT_EQ(base[i], plain);
  }
  EXPECT_NE(tuned[0], plain);
  const auto [status, error] = post("/v1/chat/completions", chat("Hello", {{"model", "../../etc/passwd"}}));
  EXPECT_EQ(status, 404);
  EXPECT_EQ(error["error"]["code"], "model_not_found");
}

TEST_F(Serve, ServesSeveralAdaptersAtOnce) {
  const std::vector<std::pair<std::string, fs::path>> adapters = {
      {"tuned", kChatModelCase / "lora_attention_init"},
      {"experts", kChatModelCase / "lora_experts_init"},
      {"lora_dora_init", kChatModelCase / "lora_dora_init"}};
  options_.adapters = {"tuned=" + adapters[0].second.string(), "experts=" + adapters[1].second.string(),
                       adapters[2].second.string()};
  start();
  ASSERT_EQ(served(), (std::vector<std::string>{"tuned", "experts", "lora_dora_init", "model"}));
  std::map<std::string, std::string> expected = {{"model", generated("Hello")}};
  for (const auto& [name, folder] : adapters) expected[name] = generated("Hello", folder);
  std::set<std::string> different;
  for (const auto& [name, answer] : expected) different.insert(answer);
  ASSERT_EQ(different.size(), expected.size());
  std::vector<std::pair<std::string, std::string>> answers;
  for (int round = 0; round < 3; ++round) {
    for (const auto& [name, answer] : expected) answers.emplace_back(name, "");
  }
  std::vector<std::thread> clients;
  for (auto& one : answers) {
    clients.emplace_back([&] {
      one.second = content(post("/v1/chat/completions", chat("Hello", {{"model", one.first}})));
    });
  }
  for (std::thread& thread : clients) thread.join();
  for (const auto& [name, answer] : answers) EXPECT_EQ(answer, expected[name]) << name;
}

TEST_F(Serve, AnAdapterThatHoldsWeightsWholeIsServedAlone) {
  const std::string with_router = adapter_with_router().string();
  const std::string other = "other=" + (kChatModelCase / "lora_attention_init").string();
  for (const std::vector<std::string>& both : {std::vector<std::string>{with_router, other}, {other, with_router}}) {
    options_.adapters = both;
    EXPECT_THAT(refusal(), HasSubstr("holds weights of the model whole"));
  }
  options_.adapters = {with_router};
  start();
  EXPECT_EQ(served(), std::vector<std::string>{"with_router"}) << "the base's router is not in memory";
  EXPECT_EQ(content(post("/v1/chat/completions", chat("Hello"))), generated("Hello", with_router));
}

TEST_F(Serve, RefusesAdaptersOfOneName) {
  const std::string adapter = (kChatModelCase / "lora_attention_init").string();
  for (const std::vector<std::string>& given :
       {std::vector<std::string>{adapter, adapter}, {"a=" + adapter, "a=" + adapter}, {"=" + adapter}}) {
    options_.adapters = given;
    EXPECT_THAT(refusal(), HasSubstr("would be called"));
  }
  options_.adapters = {"name="};
  EXPECT_THAT(refusal(), HasSubstr("has no folder"));
}

TEST_F(Serve, SaysWhatIsWrongWithARequest) {
  options_.max_waiting = 0;
  start();
  EXPECT_EQ(client().Get("/nothing")->status, 404);
  EXPECT_EQ(client().Get("/v1/chat/completions")->status, 404);
  EXPECT_EQ(client().Post("/v1/chat/completions", "{", "application/json")->status, 400);
  EXPECT_EQ(post("/v1/chat/completions", chat(std::string(200, 'x'))).second["error"]["code"],
            "context_length_exceeded");
  EXPECT_EQ(post("/v1/completions", {{"prompt", {5000}}}).first, 400);
  EXPECT_EQ(post("/v1/completions", {{"prompt", ""}}).first, 400);
  EXPECT_EQ(post("/v1/chat/completions", {{"messages", {{{"role", 1}}}}}).first, 400);
  EXPECT_EQ(post("/v1/chat/completions", chat("a", {{"temperature", -1}})).first, 400);
  EXPECT_EQ(post("/v1/chat/completions", chat("a", {{"n", 4}})).first, 503) << "three at once, none may wait";
  EXPECT_EQ(post("/v1/chat/completions", chat("a", {{"n", 3}})).first, 200);
  // Messages are read as those of training data are.
  const Json parts = {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "x"}}}}}}}};
  EXPECT_EQ(post("/v1/chat/completions", parts).first, 400);
}

TEST_F(Serve, AsksForItsKeyAndRefusesOtherSites) {
  std::ofstream(folder_ / "key") << "secret\nmore";
  options_.api_key_file = (folder_ / "key").string();
  start();
  EXPECT_EQ(client().Get("/health")->status, 200);
  EXPECT_EQ(client().Get("/")->status, 200);
  EXPECT_EQ(client().Get("/metrics")->status, 401);
  EXPECT_EQ(client().Get("/v1/models")->status, 401);
  for (const char* wrong : {"Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "secret", "Bearer secret\tmore"}) {
    EXPECT_EQ(post("/v1/chat/completions", chat("a"), {{"Authorization", wrong}}).first, 401) << wrong;
  }
  const httplib::Headers key = {{"Authorization", "Bearer secret"}};
  EXPECT_EQ(post("/v1/chat/completions", chat("a"), key).first, 200);
  httplib::Headers foreign = key;
  foreign.emplace("Host", "example.org");
  EXPECT_EQ(post("/v1/chat/completions", chat("a"), foreign).first, 403);
  httplib::Headers origin = key;
  origin.emplace("Origin", "http://example.org");
  EXPECT_EQ(post("/v1/chat/completions", chat("a"), origin).first, 403);
  const auto counts = client().Get("/metrics", key);
  EXPECT_THAT(counts->body, HasSubstr("\nhone_serve_sequences_total 1\n"));
  EXPECT_THAT(counts->body, HasSubstr("\nhone_serve_generated_tokens_total 8\n"));
}

TEST_F(Serve, SequencesWaitForRoomInTheCache) {
  options_.max_length = 256;
  options_.cache_tokens = 255;
  EXPECT_THROW(run_serve(options_), UserError);
  options_.cache_tokens = 300;
  start();
  const Json body = chat("a", {{"max_tokens", 150}, {"ignore_eos", true}});
  const std::string alone = content(post("/v1/chat/completions", body));
  std::vector<std::string> answers(4);
  std::vector<std::thread> clients;
  for (std::string& answer : answers) {
    clients.emplace_back([&] { answer = content(post("/v1/chat/completions", body)); });
  }
  for (std::thread& thread : clients) thread.join();
  EXPECT_THAT(answers, testing::Each(alone));
  const auto counts = [&] { return client().Get("/metrics")->body; };
  EXPECT_THAT(counts(), HasSubstr("\nhone_serve_cache_pages 3\n"));
  for (int i = 0; i < 1000 && counts().find("\nhone_serve_cache_pages_used 0\n") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the pass that answers last may not have ended
  }
  EXPECT_THAT(counts(), HasSubstr("\nhone_serve_cache_pages_used 0\n"));
}

TEST_F(Serve, EndsWhatNobodyWaitsFor) {
  options_.max_length = 512;
  options_.batch_size = 1;
  start();
  {
    const std::string body = chat("a", {{"max_tokens", 500}}).dump();
    const Stranger impatient(port_);
    EXPECT_TRUE(impatient.say("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body));
  }
  EXPECT_EQ(post("/v1/chat/completions", chat("a")).first, 200);  // the only slot is free
  const std::string counts = client().Get("/metrics")->body;
  const std::string name = "\nhone_serve_generated_tokens_total ";
  ASSERT_NE(counts.find(name), std::string::npos);
  EXPECT_LT(std::stoi(counts.substr(counts.find(name) + name.size())), 400);
  EXPECT_THAT(counts, HasSubstr("sequences_running 0"));
}

TEST_F(Serve, AnswersEndInTime) {
  options_.max_length = 512;
  options_.timeout = 0.02;
  start();
  const auto [status, json] = post("/v1/chat/completions", chat("a", {{"max_tokens", 500}}));
  EXPECT_EQ(status, 200);
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  EXPECT_LT(json["usage"]["completion_tokens"], 400);
}

TEST_F(Serve, RefusesToBeReachedWithoutAKey) {
  options_.host = "0.0.0.0";
  EXPECT_THROW(run_serve(options_), UserError);
  options_.host = "127.0.0.1";
  options_.batch_size = 0;
  EXPECT_THROW(run_serve(options_), UserError);
  std::ofstream(folder_ / "key") << "\n";
  options_.batch_size = 1;
  options_.api_key_file = (folder_ / "key").string();
  EXPECT_THROW(run_serve(options_), UserError);
}

}  // namespace
}  // namespace hone
