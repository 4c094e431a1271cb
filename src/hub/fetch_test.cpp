#include "hub/fetch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>

#include "core/base/error.h"
#include "core/files/root_testing.h"
#include "hub/http.h"
#include "hub/hub_server_testing.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::HubEnvironment;
using testing::HubServer;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::test_bytes;
using testing::TestRoot;

constexpr size_t kMiB = 1 << 20;

class Fetching : public ::testing::Test {
 protected:
  Fetching() : environment_(server_.endpoint(), root_.path()) {}

  FetchOptions options(const FilePatterns& patterns = {}) {
    FetchOptions options;
    options.choose = [patterns](const RepoListing& listing) {
      return choose_files(RepoType::kModel, listing, patterns);
    };
    options.is_enough = [](const RepoCache& cache, const std::string& commit, const RepoListing* listing) {
      if (listing == nullptr) return false;
      const std::vector<RepoFile> files = choose_files(RepoType::kModel, *listing);
      return std::all_of(files.begin(), files.end(), [&](const RepoFile& f) { return cache.has(commit, f.path); });
    };
    options.transfer.notice = [this](const std::string& text) { notices_ += text + "\n"; };
    return options;
  }
  fs::path fetch(const std::string& name = "org/model") {
    return fetch_repository(hub_settings(), *parse_repo_name(RepoType::kModel, name), options());
  }
  std::string error(const std::string& name = "org/model") {
    try {
      fetch(name);
    } catch (const UserError& error) {
      return error.message() + " | " + error.where() + " | " + error.fix();
    }
    return "";
  }
  std::string weights(const fs::path& snapshot) { return TestRoot::read(snapshot / "model.safetensors"); }
  const std::string& bytes(const std::string& file = "model.safetensors") {
    return server_["models/org/model"].files[file].bytes;
  }
  /// Files in the cache that are no result.
  std::vector<std::string> leftovers() {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(root_ / "hub")) {
      const std::string name = entry.path().filename();
      if (name.ends_with(".incomplete") || name.ends_with(".tmp")) names.push_back(name);
    }
    return names;
  }
  fs::path model() const { return root_ / "hub" / "models--org--model"; }

  const TestRoot root_;
  HubServer server_;
  HubEnvironment environment_;
  std::string notices_;
};

TEST_F(Fetching, WritesTheCacheOfTheHubsPrograms) {
  HubServer::Repository& repository = server_.add_model("org/model");
  repository.files["sub/more.json"] = {"{}"};
  repository.files["additional_chat_templates/tools.jinja"] = {"x"};
  const fs::path snapshot = fetch();
  EXPECT_EQ(snapshot, model() / "snapshots" / repository.commit);
  EXPECT_EQ(weights(snapshot), bytes());
  EXPECT_EQ(TestRoot::read(model() / "refs/main"), repository.commit);
  const std::string sha256 = testing::hash_of(bytes(), true), sha1 = testing::hash_of(bytes("config.json"), false);
  EXPECT_EQ(fs::read_symlink(snapshot / "model.safetensors"), fs::path("../../blobs") / sha256);
  EXPECT_EQ(fs::read_symlink(snapshot / "config.json"), fs::path("../../blobs") / sha1);
  EXPECT_EQ(fs::read_symlink(snapshot / "additional_chat_templates/tools.jinja").string().substr(0, 15),
            "../../../blobs/");
  EXPECT_FALSE(fs::exists(snapshot / "sub"));
  EXPECT_TRUE(fs::exists(root_ / "hub/CACHEDIR.TAG"));
  EXPECT_TRUE(fs::exists(root_ / "hub/.locks/models--org--model" / (sha256 + ".lock")));
  EXPECT_TRUE(fs::exists(model() / ".no_exist" / repository.commit / "adapter_config.json"));
  EXPECT_TRUE(fs::exists(model() / "trees" / (repository.commit + ".json")));
  EXPECT_THAT(leftovers(), IsEmpty());
  struct stat facts {};
  ASSERT_EQ(::stat((model() / "blobs" / sha256).c_str(), &facts), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(facts.st_mode & 0777, 0666 & ~mask);
}

TEST_F(Fetching, WhatTheCacheHasIsReadWithoutTheHub) {
  server_.add_model("org/model");
  const fs::path snapshot = fetch();
  const int before = server_.requests("");
  EXPECT_EQ(fetch(), snapshot);
  EXPECT_EQ(server_.requests(""), before);
  environment_.set("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(fetch(), snapshot);
  fs::remove(snapshot / "model.safetensors");
  EXPECT_THAT(error(), AllOf(HasSubstr("not complete in the cache"), HasSubstr("HF_HUB_OFFLINE"),
                             HasSubstr("hone download org/model")));
  EXPECT_THAT(error("org/other"), HasSubstr("is not in the cache"));
  environment_.set("HF_HUB_OFFLINE", nullptr);
  EXPECT_EQ(fetch(), snapshot);
  EXPECT_EQ(server_.store_bytes(), bytes().size()) << "the blob was still there";
}

TEST_F(Fetching, ANewCommitIsTakenOnRequest) {
  HubServer::Repository& repository = server_.add_model("org/model");
  const fs::path before = fetch();
  repository.commit = std::string(40, 'b');
  repository.files["config.json"].bytes = "{\"new\": 1}";
  EXPECT_EQ(fetch(), before);
  FetchOptions refresh = options();
  refresh.refresh = true;
  const fs::path after = fetch_repository(hub_settings(), *parse_repo_name(RepoType::kModel, "org/model"), refresh);
  EXPECT_EQ(after.filename(), std::string(40, 'b'));
  EXPECT_EQ(TestRoot::read(after / "config.json"), "{\"new\": 1}");
  EXPECT_EQ(server_.store_bytes(), bytes().size()) << "the weights are the same blob";
  EXPECT_EQ(fetch(), after);
  EXPECT_EQ(fetch("org/model@0123456789abcdef0123456789abcdef01234567"), before);
}

TEST_F(Fetching, ARefLeadsNowhereElse) {
  server_.add_model("org/model");
  const fs::path snapshot = fetch();
  const RepoCache cache(root_ / "hub", {RepoType::kModel, "org/model"});
  for (const char* ref : {"../../../elsewhere", "/etc", "..", "", "0123", "main"}) {
    std::ofstream(model() / "refs/main", std::ios::trunc) << ref;
    EXPECT_EQ(cache.commit_of("main"), "") << ref;
  }
  std::ofstream(model() / "refs/main", std::ios::trunc) << snapshot.filename().string() << "\n";
  EXPECT_EQ(cache.commit_of("main"), snapshot.filename());
  EXPECT_EQ(cache.commit_of("../refs/main"), "");
}

TEST_F(Fetching, PiecesOfOneFileArriveOnSeveralConnections) {
  server_.add_model("org/model", 40 * kMiB + 123);
  EXPECT_EQ(weights(fetch()), bytes());
  EXPECT_EQ(server_.requests("/store/"), 6) << "pieces of 8 MiB";
  EXPECT_LT(server_.requests("/resolve/"), 6 + 3 + 3) << "a signed address is used again";
}

TEST_F(Fetching, TheTokenGoesToTheEndpointAlone) {
  server_.add_model("org/model", 20 * kMiB);
  server_.token = "hf_secret";
  environment_.set("HF_TOKEN", "hf_secret");
  EXPECT_EQ(weights(fetch()), bytes());
  EXPECT_GT(server_.requests("/store/"), 0);
  EXPECT_EQ(server_.leaked(), 0);
}

TEST_F(Fetching, TroubleThatPassesIsWaitedFor) {
  server_.add_model("org/model", 20 * kMiB);
  server_.faults.busy = 2;
  server_.faults.cut = 3;
  server_.faults.expired = 1;
  EXPECT_EQ(weights(fetch()), bytes());
  EXPECT_THAT(leftovers(), IsEmpty());
  fs::remove_all(root_ / "hub");
  server_.faults.limited = 1;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(weights(fetch()), bytes());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1)) << "Retry-After";
}

TEST_F(Fetching, AStoreThatHasNotGotTheFileIsSaid) {
  server_.add_model("org/model");
  server_.faults.expired = 1000;
  EXPECT_THAT(error(), AllOf(HasSubstr("answered with 403"), HasSubstr("the store that the hub names")));
}

TEST_F(Fetching, AServerWithoutRangesIsReadToo) {
  server_.add_model("org/model", 20 * kMiB);
  server_.faults.no_ranges = true;
  EXPECT_EQ(weights(fetch()), bytes());
}

TEST_F(Fetching, WrongBytesAreNeverNamed) {
  server_.add_model("org/model", 100'000).files["model.safetensors"].sent = test_bytes(100'000, 7);
  EXPECT_THAT(error(), AllOf(HasSubstr("the bytes of model.safetensors have the hash"), HasSubstr("proxy or mirror")));
  EXPECT_THAT(notices_, HasSubstr("reading them again"));
  EXPECT_FALSE(fs::exists(model() / "blobs" / testing::hash_of(bytes(), true)));
  EXPECT_FALSE(fs::exists(model() / "refs/main"));
  // What the error has interrupted of other files goes on with the next download.
  EXPECT_THAT(leftovers(), ::testing::Not(::testing::Contains(HasSubstr(testing::hash_of(bytes(), true)))));
  server_["models/org/model"].files["model.safetensors"].sent = "";
  server_["models/org/model"].commit = std::string(40, 'c');
  server_["models/org/model"].files["generation_config.json"] = {"{\"a\": 1}", false, "{\"b\": 1}"};
  EXPECT_THAT(error(), HasSubstr("the bytes of generation_config.json have the hash"));
}

TEST_F(Fetching, AnotherSizeIsRefused) {
  server_.add_model("org/model").files["model.safetensors"].sent = test_bytes(99'999);
  EXPECT_THAT(error(), AllOf(HasSubstr("99999 bytes"), HasSubstr("lists 100000")));
  server_["models/org/model"].files["model.safetensors"].sent = test_bytes(200'000);
  EXPECT_THAT(error(), HasSubstr("200000 bytes"));
}

TEST_F(Fetching, HeadersThatContradictTheListAreRefused) {
  server_.add_model("org/model");
  server_.faults.other_etag = std::string(64, 'd');
  EXPECT_THAT(error(), HasSubstr("another hash of model.safetensors"));
  server_.faults.other_etag.reset();
  server_.faults.other_size = "5";
  EXPECT_THAT(error(), HasSubstr("another size of model.safetensors: 5"));
  server_.faults.other_size.reset();
  server_.faults.other_commit = std::string(40, 'd');
  EXPECT_THAT(error(), HasSubstr("another commit of"));
}

TEST_F(Fetching, EndlessAnswersEnd) {
  server_.add_model("org/model");
  server_.faults.endless_list = true;
  EXPECT_THAT(error(), HasSubstr("twice"));
  server_.faults.endless_list = false;
  server_.faults.endless_body = true;
  EXPECT_THAT(error(), HasSubstr("the hash")) << "no more than the file's size is read";
}

TEST_F(Fetching, ARedirectWithoutTlsToElsewhereIsRefused) {
  server_.add_model("org/model");
  server_.faults.to_plain = true;
  EXPECT_THAT(error(), HasSubstr("redirects to http://example.invalid, which has no TLS"));
}

TEST_F(Fetching, NamesThatLeadOutOfTheFolderAreRefused) {
  for (const char* name :
       {"../../evil.json", "/etc/evil.json", "a/../../evil.json", "evil\n.json", "a\\b.json", "..", ""}) {
    server_.add_model("org/model").files["evil.json"] = {"{}", false, "", name};
    if (*name == '\0') server_["models/org/model"].files["evil.json"].listed_as = "./x";
    EXPECT_THAT(error(), HasSubstr("lists a file named")) << name;
  }
  server_["models/org/model"].files["evil.json"].listed_as = "config.json";
  EXPECT_THAT(error(), HasSubstr("twice"));
  EXPECT_FALSE(fs::exists(model()));
}

TEST_F(Fetching, ListsOfSeveralPages) {
  HubServer::Repository& repository = server_.add_model("org/model");
  for (int i = 0; i < 25; ++i) repository.files[fmt::format("part{}.json", i)] = {fmt::format("{{\"i\": {}}}", i)};
  server_.page = 4;
  const fs::path snapshot = fetch();
  EXPECT_EQ(std::distance(fs::directory_iterator(snapshot), fs::directory_iterator()), 28);
}

TEST_F(Fetching, ErrorsSayTheWayOut) {
  server_.add_model("org/model");
  EXPECT_THAT(error("org/modell"), AllOf(HasSubstr("has no model 'org/modell'"), HasSubstr("Did you mean 'org/model'?"),
                                         HasSubstr("HF_TOKEN")));
  EXPECT_THAT(error("other/model"), HasSubstr("Did you mean 'org/model'?"));
  EXPECT_THAT(error("org/model@v9"), AllOf(HasSubstr("no revision 'v9'"), HasSubstr("branch, a tag or a commit")));
  server_["models/org/model"].gated = true;
  EXPECT_THAT(error(),
              AllOf(HasSubstr("is gated"), HasSubstr(server_.endpoint() + "/org/model"), HasSubstr("HF_TOKEN")));
  environment_.set("HF_ENDPOINT", "http://127.0.0.1:1");
  FetchOptions few = options();
  few.transfer.tries = 1;
  EXPECT_THAT(error("org/third"), AllOf(HasSubstr("cannot be reached"), HasSubstr("HTTPS_PROXY")));
}

TEST_F(Fetching, AProxyIsUsedAndLeftOut) {
  server_.add_model("org/model");
  environment_.set("http_proxy", "http://127.0.0.1:1");
  EXPECT_THAT(error(), HasSubstr("by the proxy 127.0.0.1:1"));
  environment_.set("no_proxy", "127.0.0.1,localhost");
  EXPECT_EQ(weights(fetch()), bytes());
  // A proxy gets the whole address; this server answers paths alone.
  environment_.set("no_proxy", nullptr);
  environment_.set("http_proxy", server_.endpoint().c_str());
  EXPECT_THAT(error("org/other"), Not(HasSubstr("cannot be reached")));
}

TEST_F(Fetching, ServersProveWhoTheyAre) {
  const testing::TestCertificate good(root_.path(), "good", "DNS:localhost,IP:127.0.0.1");
  const testing::TestCertificate other(root_.path(), "other", "DNS:elsewhere.example");
  const auto over_tls = [&](const testing::TestCertificate& certificate) {
    HubServer server(&certificate);
    server.add_model("org/model", 20 * kMiB);
    server.token = "hf_secret";
    environment_.set("HF_ENDPOINT", server.endpoint().c_str());
    environment_.set("HF_TOKEN", "hf_secret");
    const std::string said = error();
    EXPECT_EQ(server.leaked(), 0);
    EXPECT_TRUE(!said.empty() || server.store_bytes() == 20 * kMiB);
    return said;
  };
  EXPECT_THAT(over_tls(good), AllOf(HasSubstr("is not trusted"), HasSubstr("SSL_CERT_FILE")));
  environment_.set("SSL_CERT_FILE", other.file.c_str());
  EXPECT_THAT(over_tls(other), HasSubstr("is not trusted")) << "the certificate is of another name";
  EXPECT_THAT(over_tls(good), HasSubstr("is not trusted"));
  EXPECT_FALSE(fs::exists(model()));
  environment_.set("SSL_CERT_FILE", good.file.c_str());
  EXPECT_EQ(over_tls(good), "");
}

TEST_F(Fetching, AFullDiskIsNamedBefore) {
  server_.add_model("org/model");
  const RepoName name = *parse_repo_name(RepoType::kModel, "org/model");
  FetchOptions asked = options();
  uint64_t free = 0;
  asked.plan = [&](const FetchPlan& plan) {
    free = plan.free_bytes;
    EXPECT_EQ(plan.missing.size(), 3u);
    EXPECT_EQ(plan.missing_bytes, plan.bytes);
    throw UserError("stop");
  };
  EXPECT_THROW(fetch_repository(hub_settings(), name, asked), UserError);
  EXPECT_GT(free, 0u);
  EXPECT_FALSE(fs::exists(model())) << "a plan writes nothing";
}

TEST_F(Fetching, OneProcessDownloadsAndOthersWait) {
  server_.add_model("org/model", 30 * kMiB);
  server_.faults.pause_us = 2000;
  std::vector<std::future<fs::path>> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(std::async(std::launch::async, [&] {
      FetchOptions quiet = options();
      quiet.transfer.notice = {};
      return fetch_repository(hub_settings(), *parse_repo_name(RepoType::kModel, "org/model"), quiet);
    }));
  }
  for (auto& one : all) EXPECT_EQ(weights(one.get()), bytes());
  EXPECT_EQ(server_.store_bytes(), bytes().size());
  EXPECT_EQ(server_.requests("/tree/"), 1);
}

TEST_F(Fetching, WhatAnOlderHubProgramBeganIsContinued) {
  server_.add_model("org/model", 40 * kMiB);
  const fs::path blob = model() / "blobs" / testing::hash_of(bytes(), true);
  fs::create_directories(blob.parent_path());
  std::ofstream(blob.string() + ".incomplete") << bytes().substr(0, 17 * kMiB);
  EXPECT_EQ(weights(fetch()), bytes());
  EXPECT_EQ(server_.store_bytes(), 24 * kMiB);
  EXPECT_THAT(leftovers(), IsEmpty());
}

TEST_F(Fetching, ABeginningWithWrongBytesIsReadAgain) {
  server_.add_model("org/model", 20 * kMiB);
  const fs::path blob = model() / "blobs" / testing::hash_of(bytes(), true);
  fs::create_directories(blob.parent_path());
  std::ofstream(blob.string() + ".incomplete") << test_bytes(17 * kMiB, 5);
  EXPECT_EQ(weights(fetch()), bytes());
  EXPECT_THAT(notices_, HasSubstr("damaged"));
  // A whole file that a killed program was about to rename, of other bytes.
  fs::remove_all(root_ / "hub");
  fs::create_directories(blob.parent_path());
  std::ofstream(blob.string() + ".incomplete") << test_bytes(20 * kMiB, 5);
  EXPECT_EQ(weights(fetch()), bytes());
}

TEST_F(Fetching, ALockOfAnotherProgramIsWaitedFor) {
  server_.add_model("org/model");
  const std::string etag = testing::hash_of(bytes(), true);
  const fs::path locks = root_ / "hub/.locks/models--org--model";
  fs::create_directories(locks);
  const int file = ::open((locks / (etag + ".lock")).c_str(), O_RDWR | O_CREAT, 0644);
  ASSERT_EQ(::flock(file, LOCK_EX), 0);
  auto fetched = std::async(std::launch::async, [&] { return fetch(); });
  EXPECT_EQ(fetched.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  ::close(file);
  EXPECT_EQ(weights(fetched.get()), bytes());
  EXPECT_THAT(notices_, HasSubstr("another program downloads model.safetensors"));
}

TEST_F(Fetching, EmptyFilesAndSameBytesTwice) {
  HubServer::Repository& repository = server_.add_model("org/model");
  repository.files["added_tokens.json"] = {""};
  repository.files["a.json"] = repository.files["b.json"] = {"{\"same\": 1}"};
  const fs::path snapshot = fetch();
  EXPECT_EQ(fs::file_size(snapshot / "added_tokens.json"), 0u);
  EXPECT_EQ(TestRoot::read(snapshot / "a.json"), TestRoot::read(snapshot / "b.json"));
}

TEST(FileChoice, TakesWhatAModelIsReadFrom) {
  RepoListing listing;
  for (const char* path : {"config.json",
                           "generation_config.json",
                           "tokenizer.json",
                           "merges.txt",
                           "tokenizer.model",
                           "chat_template.jinja",
                           "additional_chat_templates/a.jinja",
                           "model-00001-of-00002.safetensors",
                           "model-00002-of-00002.safetensors",
                           "model.safetensors.index.json",
                           "consolidated.safetensors",
                           "model.fp16.safetensors",
                           "pytorch_model.bin",
                           "pytorch_model.bin.index.json",
                           "modeling.py",
                           "onnx/model.onnx",
                           "original/consolidated.00.pth",
                           "original/params.json",
                           "model.gguf",
                           "README.md",
                           "LICENSE.txt",
                           ".gitattributes",
                           "tf_model.h5",
                           "sub/model.safetensors"}) {
    listing.files.push_back({path, 1, std::string(40, 'a'), "", ""});
  }
  std::vector<std::string> names;
  for (const RepoFile& file : choose_files(RepoType::kModel, listing)) names.push_back(file.path);
  EXPECT_THAT(
      names, ElementsAre("config.json", "generation_config.json", "tokenizer.json", "merges.txt", "tokenizer.model",
                         "chat_template.jinja", "additional_chat_templates/a.jinja", "model-00001-of-00002.safetensors",
                         "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
  EXPECT_EQ(model_fault({RepoType::kModel, "a/b"}, listing), "");
  names.clear();
  for (const RepoFile& file :
       choose_files(RepoType::kModel, listing, {{"*.py", "on*", "*.json"}, {"token*", "original/"}}))
    names.push_back(file.path);
  EXPECT_THAT(names, ElementsAre("config.json", "generation_config.json", "model.safetensors.index.json",
                                 "pytorch_model.bin.index.json", "onnx/model.onnx"));
  listing.files = {{"pytorch_model.bin", 1, "", "", ""}};
  EXPECT_THAT(model_fault({RepoType::kModel, "a/b"}, listing), HasSubstr("pickles"));
  listing.files = {{"x.gguf", 1, "", "", ""}};
  EXPECT_THAT(model_fault({RepoType::kModel, "a/b"}, listing), HasSubstr("GGUF"));
}

TEST(FileChoice, PatternsAreThoseOfTheShell) {
  EXPECT_TRUE(matches_pattern("*.json", "a/b.json"));
  EXPECT_TRUE(matches_pattern("a?c[0-9]*", "abc7x"));
  EXPECT_TRUE(matches_pattern("[!a]*", "b"));
  EXPECT_TRUE(matches_pattern("data/", "data/x/y"));
  EXPECT_FALSE(matches_pattern("a?c", "abbc"));
  EXPECT_FALSE(matches_pattern("[!a]", "a"));
  EXPECT_FALSE(matches_pattern("", "a"));
  EXPECT_TRUE(matches_pattern("[", "["));
}

}  // namespace
}  // namespace hone
