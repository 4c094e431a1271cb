#include "app/serve/serve.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <thread>

#include "app/launch/rank_processes.h"
#include "app/output.h"
#include "app/serve/model_thread.h"
#include "app/serve/openai.h"
#include "app/serve/serve_page.h"
#include "core/base/error.h"
#include "core/base/quiet_thread.h"
#include "core/files/file_bytes.h"
#include "core/text/json.h"
#include "data/formats/sample_format.h"
#include "dist/control/run_secret.h"
#include "report/http_server.h"
#include "report/humanise.h"
#include "text/thinking.h"

namespace hone {
namespace {

using ServeClock = std::chrono::steady_clock;

constexpr int64_t kDefaultMaxLength = 4096;  // keys and values of a long context take much memory
constexpr int64_t kTokensOfAText = 16;       // what completions get where nothing is said, as OpenAI's
constexpr HttpLimits kLimits{.clients = 512,
                             .head = 16 << 10,
                             .body = 8 << 20,
                             .unsent = 4 << 20,
                             .request_seconds = 30,
                             .idle_seconds = 60,
                             .stalled_seconds = 30};

std::string read_api_key(const ServeOptions& options) {
  std::string key;
  std::string where = "--api-key-file";
  if (!options.api_key_file.empty()) {
    key = read_whole_file(options.api_key_file);
    key.resize(std::min(key.find_first_of("\r\n"), key.size()));
    where = options.api_key_file;
  } else if (const char* variable = std::getenv("HONE_API_KEY")) {
    key = variable;
    where = "HONE_API_KEY";
    if (key.empty()) return key;
  } else {
    return key;
  }
  if (key.empty()) throw UserError("the key is empty", where, "write a key of your own, such as openssl rand -hex 24");
  return key;
}

bool is_loopback(const std::string& host) { return host == "localhost" || host == "127.0.0.1" || host == "::1"; }

std::string folder_name(const std::string& path) {
  std::filesystem::path folder = path;
  if (!folder.has_filename()) folder = folder.parent_path();
  return folder.filename().string();
}

/// An adapter as it is given: NAME=FOLDER, or FOLDER.
std::pair<std::string, std::string> named_adapter(const std::string& given) {
  const size_t equals = given.find('=');
  if (equals == std::string::npos || given.find('/') < equals || std::filesystem::exists(given)) {
    return {folder_name(given), given};
  }
  return {given.substr(0, equals), given.substr(equals + 1)};
}

/// The options with what --adapter says, each time it is given.
ServeOptions with_adapters(ServeOptions options) {
  for (const std::string& given : options.adapters) {
    const std::string folder = named_adapter(given).second;
    if (folder.empty()) throw UserError("an adapter has no folder", "--adapter " + given, "give NAME=FOLDER or FOLDER");
    if (options.adapter.empty()) {
      options.adapter = folder;
    } else {
      options.further_adapters.push_back(folder);
    }
  }
  options.base_beside = true;
  return options;
}

/// What requests call the forms of a model. UserError if two have one name.
std::vector<std::string> names_of(const ServeOptions& options, const InferenceModel& model) {
  std::vector<std::string> names;
  for (const std::string& given : options.adapters) names.push_back(named_adapter(given).first);
  if (names.empty()) names.push_back(folder_name(options.adapter.empty() ? options.model : options.adapter));
  if (!options.name.empty()) names[0] = options.name;
  std::set<std::string> taken;
  for (const std::string& name : names) {
    if (!name.empty() && taken.insert(name).second) continue;
    throw UserError(fmt::format("two adapters, or one without a name, would be called '{}'", name), "--adapter",
                    "name them: --adapter one=FOLDER --adapter two=FOLDER");
  }
  if (model.forms().size() > names.size()) {
    std::string base = model.base_name();
    while (taken.contains(base)) base += "-base";
    names.push_back(base);
  }
  return names;
}

std::string random_id() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}", random(), random(), random());
}

/// Runs jobs one after the other in a thread of its own: a long prompt is read here, while the server serves others.
class JobThread {
 public:
  static constexpr size_t kMostJobs = 1024;

  JobThread() : thread_(quiet_thread([this] { run(); })) {}
  ~JobThread() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  JobThread(const JobThread&) = delete;
  JobThread& operator=(const JobThread&) = delete;

  /// False: too many wait.
  bool add(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      if (jobs_.size() >= kMostJobs) return false;
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
    return true;
  }

 private:
  void run() {
    while (true) {
      std::function<void()> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
        if (ending_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  // guarded by the mutex
  bool ending_ = false;
  std::thread thread_;
};

/// One request on its way: the answers to all of its prompts. Used by the model's thread alone once it is submitted.
class Answer {
 public:
  Answer(const InferenceForm& form, const ApiRequest& request, ApiAnswer facts, std::shared_ptr<HttpReply> reply,
         ServeClock::time_point end)
      : form_(form),
        facts_(std::move(facts)),
        stream_(request.stream),
        tells_usage_(request.tells_usage),
        reply_(std::move(reply)),
        end_(end) {}

  /// A further answer, whose text is divided so; returns its index. Before any of them begins.
  size_t add(const AnswerTextOptions& text) {
    parts_.emplace_back(*form_.tokenizer, text);
    parts_.back().choice.index = static_cast<int>(left_);
    return left_++;
  }
  void count_prompt(size_t tokens) { usage_.prompt_tokens += static_cast<int64_t>(tokens); }

  bool unwanted() const { return reply_->gone() || ServeClock::now() >= end_; }

  /// Returns whether the answer goes on.
  bool push(size_t index, const GeneratedToken& token) {
    Part& part = parts_[index];
    ++usage_.completion_tokens;
    if (form_.is_stop(token.id)) return true;  // it ends the sequence, or is ignored
    AnswerPiece piece = part.text.push(token.id);
    if (facts_.tells_likely) part.fresh.push_back(shown(token));
    if (!piece.empty()) tell(part, std::move(piece));
    return !part.text.stopped();
  }

  void end(size_t index, const GeneratedSequence& sequence) {
    Part& part = parts_[index];
    usage_.cached_tokens += sequence.found;
    AnswerPiece piece = part.text.finish();
    const bool called = !part.choice.piece.calls.empty() || !piece.calls.empty() || part.choice.calls_before > 0;
    part.choice.finish = called                                                          ? "tool_calls"
                         : part.text.stopped() || sequence.finish == FinishReason::kStop ? "stop"
                                                                                         : "length";
    tell(part, std::move(piece));
    if (--left_ > 0 || failed_) return;
    if (!stream_) {
      std::vector<ApiChoice> choices;
      for (Part& done : parts_) choices.push_back(std::move(done.choice));
      reply_->send(200, "application/json", line_of(whole_answer(facts_, choices, usage_)));
      return;
    }
    if (tells_usage_) event(usage_chunk(facts_, usage_));
    reply_->write("data: [DONE]\n\n");
    reply_->end();
  }

  void fail(const ApiError& error) {
    if (std::exchange(failed_, true)) return;
    if (!stream_ || !begun_) return reply_->send(error.status(), "application/json", line_of(error.json()));
    event(error.json());
    reply_->end();
  }

 private:
  struct Part {
    Part(const Tokenizer& tokenizer, const AnswerTextOptions& options) : text(tokenizer, options) {}
    AnswerText text;
    ApiChoice choice;
    std::vector<ShownChoice> fresh;  // tokens that have not been told
    size_t offset = 0;               // bytes of text that have been told
    bool told = false;
  };

  ShownToken shown(int32_t id, double value) const {
    const std::string text = form_.tokenizer->decode(std::span(&id, 1), false);
    return {.text = text, .bytes = text, .value = value};
  }
  ShownChoice shown(const GeneratedToken& token) const {
    ShownChoice choice{.chosen = shown(token.id, token.log_probability), .likely = {}};
    for (const TokenLogit& other : token.likely) choice.likely.push_back(shown(other.id, other.value));
    return choice;
  }

  void event(const Json& json) {
    if (!std::exchange(begun_, true)) {
      reply_->begin(200, "text/event-stream; charset=utf-8", {{"Cache-Control", "no-store"}});
    }
    reply_->write(fmt::format("data: {}\n\n", line_of(json)));
  }

  /// Adds a piece to the answer, and sends it where it is streamed.
  void tell(Part& part, AnswerPiece piece) {
    ApiChoice& choice = part.choice;
    if (stream_) {
      choice.piece = std::move(piece);
      choice.tokens = std::exchange(part.fresh, {});
      choice.text_offset = part.offset;
      event(chunk(facts_, choice, !std::exchange(part.told, true)));
      part.offset += choice.piece.content.size();
      choice.calls_before += choice.piece.calls.size();
      choice.piece = {};
      choice.tokens.clear();
      return;
    }
    choice.piece.content += piece.content;
    choice.piece.reasoning += piece.reasoning;
    std::move(piece.calls.begin(), piece.calls.end(), std::back_inserter(choice.piece.calls));
    std::move(part.fresh.begin(), part.fresh.end(), std::back_inserter(choice.tokens));
    part.fresh.clear();
  }

  const InferenceForm& form_;
  const ApiAnswer facts_;
  const bool stream_, tells_usage_;
  const std::shared_ptr<HttpReply> reply_;
  const ServeClock::time_point end_;
  std::deque<Part> parts_;
  ApiUsage usage_;
  size_t left_ = 0;
  bool begun_ = false, failed_ = false;
};

ApiError as_api_error(const Error& error) {
  const bool asked_wrong = error.code() == ExitCode::kUserInput;
  std::string text = error.message();
  if (!error.fix().empty()) text += "; " + error.fix();
  return ApiError(asked_wrong ? 400 : 500, std::move(text), asked_wrong ? error.where() : "");
}

/// A prompt in tokens, and how the text of its answers is divided.
struct ReadPrompt {
  std::vector<int32_t> ids;
  AnswerTextOptions text;
};

class Server {
 public:
  explicit Server(const ServeOptions& options)
      : options_(with_adapters(checked(options))),
        key_(read_api_key(options_)),
        model_(options_),
        created_(std::time(nullptr)),
        max_length_(std::min(model_.context(), options_.max_length > 0 ? options_.max_length : kDefaultMaxLength)) {
    if (!is_loopback(options_.host) && key_.empty()) {
      throw UserError(fmt::format("{} can be reached from other machines, and no key is set", options_.host), "--host",
                      "give --api-key-file FILE or set HONE_API_KEY; or serve on 127.0.0.1");
    }
    names_ = names_of(options_, model_);
    generator_ = &model_.load({.max_sequences = options_.batch_size,
                               .max_length = std::max<int64_t>(max_length_, 2),
                               .cache_tokens = options_.cache_tokens,
                               .variants = static_cast<int>(names_.size()),
                               .use_variant = [this](int variant) { model_.use_form(static_cast<size_t>(variant)); }},
                              [](const std::string& line) { print_error(line + "\n"); });
    for (const std::string& line : model_.notes()) print_error(line + "\n");
  }

  int run() {
    const auto slots = static_cast<size_t>(options_.batch_size);
    thread_.emplace(*generator_, slots, static_cast<size_t>(options_.max_waiting));
    std::optional<HttpServer> server;  // ends first, and gives no further job to the reader
    try {
      server.emplace(options_.host, options_.port, kLimits,
                     [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
                       answer(*reply, [&] { route(std::move(request), reply); });
                     });
    } catch (const std::system_error& error) {
      throw UserError(error.code().message(), fmt::format("--host {} --port {}", options_.host, options_.port),
                      "choose another port: --port 0 takes any that is free");
    }
    print_error(
        fmt::format("sequences of {} tokens, {} at once, {} of cache. http://{}:{}/v1 serves {}; Ctrl-C ends.\n",
                    max_length_, options_.batch_size, human_bytes(generator_->cache().bytes),
                    options_.host.find(':') == std::string::npos ? options_.host : "[" + options_.host + "]",
                    server->port(), fmt::join(names_, ", ")));
    if (options_.started) options_.started(server->port());
    while (!(options_.ends && options_.ends())) {
      const int signal = signals_.take();
      if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    server.reset();
    return 0;
  }

 private:
  static const ServeOptions& checked(const ServeOptions& options) {
    const auto require = [](bool holds, const char* option, const char* range) {
      if (!holds) throw UserError("the value is out of range", option, fmt::format("use {}", range));
    };
    require(options.port >= 0 && options.port <= 65535, "--port", "0 to 65535");
    require(options.batch_size >= 1 && options.batch_size <= 4096, "--batch-size", "1 to 4096");
    require(options.max_waiting >= 0, "--max-waiting", "0 or more");
    require(options.timeout > 0, "--timeout", "a number of seconds above 0");
    require(options.max_length >= 0, "--max-length", "at least 2; left out: the model's context, at most 4096");
    return options;
  }

  /// Answers by what `work` does, or throws.
  static void answer(HttpReply& reply, const std::function<void()>& work) {
    try {
      work();
    } catch (const ApiError& error) {
      reply.send(error.status(), "application/json", line_of(error.json()),
                 error.status() == 401 ? HttpReply::Headers{{"WWW-Authenticate", "Bearer"}} : HttpReply::Headers{});
    } catch (const Error& error) {
      const ApiError api = as_api_error(error);
      reply.send(api.status(), "application/json", line_of(api.json()));
    } catch (const std::exception&) {
      reply.send(500, "application/json", line_of(ApiError(500, "the request could not be read").json()));
    }
  }

  /// On the server's thread, as the handler of requests.
  void route(HttpRequest request, const std::shared_ptr<HttpReply>& reply) {
    require_own_site(request);
    const bool get = request.method == "GET", post = request.method == "POST";
    if (get && request.path == "/health") return reply->send(200, "text/plain", "ok\n");
    if (get && request.path == "/") {
      return reply->send(200, "text/html; charset=utf-8", serve_page_files().front().text,
                         {{"Content-Security-Policy",
                           "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
                           "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}});
    }
    require_key(request);
    if (get && request.path == "/metrics") return reply->send(200, "text/plain; version=0.0.4", metrics());
    if (get && request.path == "/v1/models") {
      return reply->send(200, "application/json", line_of(model_list(names_, created_)));
    }
    for (const auto& [path, form] :
         {std::pair("/v1/chat/completions", ApiForm::kChat), std::pair("/v1/completions", ApiForm::kText)}) {
      if (!post || request.path != path) continue;
      auto read = [this, form = form, body = std::move(request.body), reply] {
        answer(*reply, [&] { complete(form, body, reply); });
      };
      if (!reader_.add(std::move(read))) throw overloaded();
      return;
    }
    throw ApiError(404, fmt::format("{} {} is not served", request.method, request.path));
  }

  /// Refuses what a page of another site sends: by the name that it reached us with, or by its origin.
  void require_own_site(const HttpRequest& request) const {
    const std::string* host = request.header("host");
    if (is_loopback(options_.host) && host != nullptr && !is_own_host(*host, options_.host)) {
      throw ApiError(403, "the Host header does not name this machine", "Host");
    }
    const std::string* origin = request.header("origin");
    if (origin != nullptr && (host == nullptr || *origin != "http://" + *host)) {
      throw ApiError(403, "pages of other sites are not answered", "Origin");
    }
  }

  void require_key(const HttpRequest& request) const {
    if (key_.empty()) return;
    constexpr std::string_view kScheme = "Bearer ";
    const std::string* given = request.header("authorization");
    const bool holds = given != nullptr && given->starts_with(kScheme) &&
                       same_secret(std::string_view(*given).substr(kScheme.size()), key_);
    if (!holds) throw ApiError(401, "the API key is missing or wrong", "", "invalid_api_key");
  }

  std::string metrics() const {
    const ServedCounts counts = thread_->counts();
    std::string text;
    const auto metric = [&](const char* name, const char* kind, const char* help, auto value) {
      text += fmt::format("# HELP hone_serve_{0} {2}\n# TYPE hone_serve_{0} {1}\nhone_serve_{0} {3}\n", name, kind,
                          help, value);
    };
    metric("sequences_running", "gauge", "Sequences in the batch.", counts.running);
    metric("sequences_waiting", "gauge", "Sequences without a slot.", counts.waiting);
    metric("sequences_put_back_total", "counter", "Sequences that gave up their pages to older ones and waited again.",
           counts.put_back);
    metric("cache_pages", "gauge", "Pages of the cache, of 128 tokens.", counts.pages);
    metric("cache_pages_used", "gauge", "Pages that sequences have.", counts.used_pages);
    metric("sequences_total", "counter", "Sequences begun.", counts.sequences);
    metric("sequences_failed_total", "counter", "Sequences that ended with an error.", counts.failed);
    metric("prompt_tokens_total", "counter", "Tokens of prompts.", counts.prompt_tokens);
    metric("prompt_tokens_found_total", "counter", "Of these, tokens whose pages an earlier sequence had left.",
           counts.found_tokens);
    metric("generated_tokens_total", "counter", "Tokens generated.", counts.generated_tokens);
    return text;
  }

  int variant_of(const std::string& name) const {
    if (name.empty()) return 0;
    const auto found = std::find(names_.begin(), names_.end(), name);
    if (found == names_.end()) {
      throw ApiError(404, fmt::format("{} is not served; GET /v1/models lists what is", name), "model",
                     "model_not_found");
    }
    return static_cast<int>(found - names_.begin());
  }

  static ReadPrompt read_chat(const ApiRequest& request, const InferenceForm& form) {
    if (!form.chat->has_template()) {
      throw ApiError(400, "the model has no chat template; /v1/completions continues texts", "messages");
    }
    Json row = {{"messages", request.messages}};
    if (!request.tools.is_null() && !request.tools.empty()) row["tools"] = request.tools;
    FormattedRow read = format_row(row, SampleFormat::kMessages, "messages");
    Conversation& conversation = std::get<Conversation>(read);
    ChatInput input;
    input.messages = std::move(conversation.messages);
    input.tools = std::move(conversation.tools);
    Json variables = form.variables;
    variables.update(request.template_kwargs);
    input.variables = std::move(variables);
    ReadPrompt prompt;
    prompt.text.thinks = true;
    prompt.text.form = form.chat->call_form(form.variables);
    prompt.text.tools = input.tools;
    EncodedPrompt encoded = form.chat->encode_with_text(std::move(input), "messages");
    prompt.text.open_tag = open_think_tag(encoded.text);
    prompt.ids = std::move(encoded.ids);
    return prompt;
  }

  static std::vector<ReadPrompt> read_prompts(const ApiRequest& request, const InferenceForm& form) {
    std::vector<ReadPrompt> prompts;
    if (request.form == ApiForm::kChat) prompts.push_back(read_chat(request, form));
    for (const ApiPrompt& prompt : request.prompts) {
      const auto* text = std::get_if<std::string>(&prompt);
      prompts.push_back(
          {.ids = text != nullptr ? form.tokenizer->encode(*text, true) : std::get<std::vector<int32_t>>(prompt),
           .text = {}});
    }
    for (ReadPrompt& prompt : prompts) prompt.text.stop = request.stop;
    return prompts;
  }

  /// The options of an answer to a prompt.
  SamplingOptions sampling_of(const ApiRequest& request, size_t prompt_tokens) const {
    SamplingOptions sampling = request.sampling.apply(model_.sampling());
    if (!request.sampling.seed && !options_.sampling.seed) sampling.seed = std::random_device()();
    if (!request.sampling.max_new_tokens && !options_.sampling.max_new_tokens) {
      const int64_t room = std::max<int64_t>(1, max_length_ - static_cast<int64_t>(prompt_tokens));
      sampling.max_new_tokens = request.form == ApiForm::kChat ? room : std::min(room, kTokensOfAText);
    }
    return sampling;
  }

  void complete(ApiForm form, const std::string& body, const std::shared_ptr<HttpReply>& reply) {
    const ApiRequest request = read_request(form, body);
    const int variant = variant_of(request.model);
    const InferenceForm& answering = model_.forms()[static_cast<size_t>(variant)];
    const std::vector<ReadPrompt> prompts = read_prompts(request, answering);
    ApiAnswer facts{.form = form,
                    .id = (form == ApiForm::kChat ? "chatcmpl-" : "cmpl-") + random_id(),
                    .model = names_[static_cast<size_t>(variant)],
                    .created = std::time(nullptr),
                    .tells_likely = request.likely.has_value()};
    const auto end = ServeClock::now() +
                     std::chrono::duration_cast<ServeClock::duration>(std::chrono::duration<double>(options_.timeout));
    const auto answer = std::make_shared<Answer>(answering, request, std::move(facts), reply, end);
    std::vector<ServedSequence> sequences;
    for (const ReadPrompt& prompt : prompts) {
      answer->count_prompt(prompt.ids.size());
      if (static_cast<int64_t>(prompt.ids.size()) >= max_length_) {
        throw ApiError(400,
                       fmt::format("the prompt has {} tokens, and prompt and answer may have {} together",
                                   prompt.ids.size(), max_length_),
                       form == ApiForm::kChat ? "messages" : "prompt", "context_length_exceeded");
      }
      for (int i = 0; i < request.count; ++i) {
        const size_t index = answer->add(prompt.text);
        std::vector<int32_t> stop_ids = request.ignores_eos ? std::vector<int32_t>() : answering.stop_ids();
        stop_ids.insert(stop_ids.end(), request.stop_ids.begin(), request.stop_ids.end());
        sequences.push_back(
            {.request = {.prompt = prompt.ids,
                         .sampling = sampling_of(request, prompt.ids.size()),
                         .stop_ids = std::move(stop_ids),
                         .variant = variant,
                         .draw = index,
                         .likely = request.likely,
                         .on_token = [answer,
                                      index](const GeneratedToken& token) { return answer->push(index, token); },
                         .on_end = [answer, index](const GeneratedSequence& all) { answer->end(index, all); }},
             .unwanted = [answer] { return answer->unwanted(); },
             .failed = [answer](const std::exception_ptr& error) { answer->fail(api_error_of(error)); }});
      }
    }
    if (!thread_->submit(std::move(sequences))) throw overloaded();
  }

  static ApiError overloaded() { return ApiError(503, "too many requests wait; try again later", "", "overloaded"); }

  static ApiError api_error_of(const std::exception_ptr& exception) {
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) {
      return as_api_error(error);
    } catch (const std::exception& error) {
      return ApiError(500, error.what());
    }
  }

  const ServeOptions options_;
  CaughtSignals signals_;
  const std::string key_;
  InferenceModel model_;
  const int64_t created_;
  const int64_t max_length_;
  std::vector<std::string> names_;  // by variant
  Generator* generator_ = nullptr;
  std::optional<ModelThread> thread_;
  JobThread reader_;  // reads requests; ends before the thread that it gives them to
};

}  // namespace

int run_serve(const ServeOptions& options) { return Server(options).run(); }

}  // namespace hone
