// hone with names of the hub, as a user does it, against a hub on this machine; and beside huggingface_hub, whose cache
// it shares.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "hub/hub_server_testing.h"
#include "program.h"
#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::HubEnvironment;
using testing::HubServer;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::test_bytes;

constexpr size_t kMiB = 1 << 20;

class Hub : public ::testing::Test {
 protected:
  Hub() : environment_(server_.endpoint(), (folder_ / "home").string()) {}

  /// Puts a model of the tests onto the hub.
  std::string add_tiny(const std::string& id) {
    const std::string model = make_model(folder_);
    HubServer::Repository& repository = server_["models/" + id];
    for (const auto& entry : fs::directory_iterator(model)) {
      const std::string name = entry.path().filename();
      repository.files[name] = {read_file(entry.path()), name.ends_with(".safetensors")};
    }
    return model;
  }
  fs::path cache() const { return folder_ / "home" / "hub"; }
  fs::path snapshot(const std::string& id) {
    std::string name = "models--" + id;
    name.replace(name.find('/'), 1, "--");
    return cache() / name / "snapshots" / server_["models/" + id].commit;
  }
  std::vector<std::string> leftovers() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(cache())) {
      const std::string name = entry.path().filename();
      if (name.ends_with(".incomplete") || name.ends_with(".tmp")) names.push_back(entry.path());
    }
    return names;
  }

  const Folder folder_;
  HubServer server_;
  HubEnvironment environment_;
};

TEST_F(Hub, DownloadPrintsTheFolder) {
  server_.add_model("org/model", 30 * kMiB);
  const Outcome first = run_hone({"download", "org/model"});
  ASSERT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, snapshot("org/model").string() + "\n");
  EXPECT_THAT(first.err, AllOf(HasSubstr("download org/model: 3 files, 31.5 MB (31.5 MB to download"),
                               HasSubstr("downloaded 31.5 MB in")));
  const Outcome again = run_hone({"download", "org/model", "--json"});
  EXPECT_EQ(again.code, 0);
  EXPECT_EQ(again.err, "");
  EXPECT_EQ(Json::parse(again.out)["downloaded_bytes"], 0);
  EXPECT_EQ(Json::parse(again.out)["commit"], server_["models/org/model"].commit);
}

TEST_F(Hub, DownloadRefusesWhatItCannotDo) {
  server_.add_model("org/model");
  const auto error = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "download");
    const Outcome outcome = run_hone(arguments);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    return outcome.err;
  };
  EXPECT_THAT(error({"../x"}), HasSubstr("is not the name of a repository"));
  EXPECT_THAT(error({"org/model@a", "--revision", "b"}), HasSubstr("leave one of them out"));
  EXPECT_THAT(error({"org/model", "--repo-type", "space"}), HasSubstr("use model or dataset"));
  EXPECT_THAT(error({"org/model", "--revision", "../x"}), HasSubstr("is not a revision"));
  EXPECT_THAT(error({"org/model", "--include", "*.gguf"}), HasSubstr("no file of 'org/model' is left"));
  EXPECT_THAT(error({"org/mode"}), HasSubstr("Did you mean 'org/model'?"));
  server_["models/org/model"].files.erase("model.safetensors");
  server_["models/org/model"].files["pytorch_model.bin"] = {"x", true};
  EXPECT_THAT(error({"org/model"}), HasSubstr("pickles"));
}

TEST_F(Hub, PatternsChooseFiles) {
  server_.add_model("org/model").files["evil.py"] = {"x"};
  const Outcome outcome =
      run_hone({"download", "org/model", "--include", "*.json", "--include", "*.py", "--exclude", "tok*"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(names_in(snapshot("org/model")), ::testing::ElementsAre("config.json"));
}

TEST_F(Hub, ALargeModelThatFitsNowhereIsAskedFor) {
  HubServer::Repository& repository = server_["models/org/large"];
  Json config = tiny_config();
  config["num_hidden_layers"] = 100;
  config["hidden_size"] = 65536;
  config["intermediate_size"] = config["moe_intermediate_size"] = 65536;
  repository.files["config.json"] = {config.dump()};
  repository.files["model.safetensors"] = {"x", true};
  server_.listed_size = 20'000'000'000;
  const Outcome outcome = run_hone({"download", "org/large"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("download org/large: 2 files, 20.0 GB"),
                                 HasSubstr("cannot be trained on this machine"), HasSubstr("--yes")));
  const std::string data = folder_.write("data.jsonl", progressions(20));
  const Outcome run = run_hone(train_arguments("org/large", data, folder_ / "out"));
  EXPECT_EQ(run.code, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("cannot be trained on this machine"), HasSubstr("hone download org/large")));
  EXPECT_EQ(server_.requests("/store/"), 0);
}

TEST_F(Hub, ModelsAreNamedInEveryVerb) {
  const std::string model = add_tiny("org/tiny");
  const std::string data = folder_.write("data.jsonl", progressions(20));
  const Outcome estimate = run_hone({"estimate", "org/tiny"});
  EXPECT_EQ(estimate.code, 0) << estimate.err;
  EXPECT_EQ(server_.requests("/store/"), 0) << "no weights for a plan";
  const Outcome inspect = run_hone({"inspect", "org/tiny"});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  const Outcome trained = run_hone(train_arguments("org/tiny", data, folder_ / "out"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Outcome here = run_hone(train_arguments(model, data, folder_ / "here"));
  ASSERT_EQ(here.code, 0) << here.err;
  EXPECT_EQ(read_file(folder_ / "out/model.safetensors"), read_file(folder_ / "here/model.safetensors"));
  EXPECT_TRUE(contains(read_file(folder_ / "out/config.resolved.yaml"), "org/tiny"));
  const Outcome revised = run_hone(train_arguments("org/tiny", data, folder_ / "revised", {"model_revision=v9"}));
  EXPECT_EQ(revised.code, 2);
  EXPECT_THAT(revised.err, HasSubstr("no revision 'v9'"));
  environment_.set("HF_HUB_OFFLINE", "1");
  const Outcome inspected = run_hone({"inspect", "org/tiny@main"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  const Outcome other = run_hone(train_arguments("org/other", data, folder_ / "other"));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("not in the cache"), HasSubstr("hone download org/other")));
}

TEST_F(Hub, AdaptersAreNamedToo) {
  add_tiny("org/tiny");
  const std::string data = folder_.write("data.jsonl", progressions(20));
  const Outcome trained =
      run_hone(train_arguments("org/tiny", data, folder_ / "out", {"finetuning_type=lora", "lora_r=2"}));
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    server_["models/org/adapter"].files[name] = {read_file(folder_ / "out" / name), true};
  }
  const Outcome merged =
      run_hone({"merge", "--model", "org/tiny", "--adapter", "org/adapter", "--output", (folder_ / "merged").string()});
  EXPECT_EQ(merged.code, 0) << merged.err;
  const Outcome here = run_hone({"merge", "--model", "org/tiny", "--adapter", (folder_ / "out").string(), "--output",
                                 (folder_ / "merged2").string()});
  EXPECT_EQ(here.code, 0) << here.err;
  EXPECT_EQ(read_file(folder_ / "merged/model.safetensors"), read_file(folder_ / "merged2/model.safetensors"));
  const Outcome continued =
      run_hone(train_arguments("org/tiny", data, folder_ / "more", {"adapter_name_or_path=org/adapter"}));
  EXPECT_EQ(continued.code, 0) << continued.err;
  const Outcome wrong =
      run_hone(train_arguments("org/tiny", data, folder_ / "wrong", {"adapter_name_or_path=org/tiny@v1"}));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("no revision 'v1'"));
}

TEST_F(Hub, DataSetsAreNamed) {
  add_tiny("org/tiny");
  HubServer::Repository& data = server_["datasets/org/data"];
  data.files["README.md"] = {
      "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: main/tr-*\n"
      "  - split: test\n    path: main/te-*\n- config_name: other\n  data_files: other.jsonl\n---\ntext\n"};
  data.files["main/tr-1.jsonl"] = {progressions(20, 1), true};
  data.files["main/te-1.jsonl"] = {progressions(5, 2)};
  data.files["other.jsonl"] = {progressions(7, 3)};
  data.files["load.py"] = {"x"};
  const auto prepare = [&](const std::string& entry) {
    return run_hone({"prepare", "model_name_or_path=org/tiny", "datasets=" + entry});
  };
  const Outcome found = prepare("[{path: org/data, name: main, split: 'train[:12]'}]");
  ASSERT_EQ(found.code, 0) << found.err;
  EXPECT_THAT(found.out + found.err, HasSubstr("data-main"));
  EXPECT_EQ(server_.requests("resolve") - server_.requests("te-1"), server_.requests("resolve")) << "only the split";
  EXPECT_EQ(server_.requests("load.py"), 0);
  EXPECT_THAT(prepare("[{path: org/data, split: train}]").err,
              AllOf(HasSubstr("main, other"), HasSubstr("name: main")));
  EXPECT_THAT(prepare("[{path: org/data, name: mian}]").err, HasSubstr("Did you mean 'main'?"));
  EXPECT_THAT(prepare("[{path: org/data, name: main}]").err,
              AllOf(HasSubstr("the splits train, test"), HasSubstr("split: train")));
  EXPECT_EQ(prepare("[{path: org/data, name: other}]").code, 0);
  EXPECT_THAT(prepare("[{path: org/data, name: other, revision: v9}]").err, HasSubstr("no revision 'v9'"));
  const auto init = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"init", "org/tiny", "--output", "-", "--data", "org/data"});
    return run_hone(arguments);
  };
  const Outcome begun = init({"--data-name", "main"});
  ASSERT_EQ(begun.code, 0) << begun.err;
  EXPECT_THAT(begun.out, AllOf(HasSubstr("  - path: org/data"), HasSubstr("    name: main\n"),
                               HasSubstr("    split: train\n"), HasSubstr("max_length: 128")));
  EXPECT_EQ(prepare("[{path: org/data, name: main, split: train}]").code, 0);
  EXPECT_THAT(init({}).err, AllOf(HasSubstr("main, other"), HasSubstr("--data-name")));
  environment_.set("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(prepare("[{path: org/data, name: other}]").code, 0);
  EXPECT_THAT(prepare("[{path: org/data, name: main, split: test}]").err, HasSubstr("not complete in the cache"));
  for (const char* address :
       {"s3://bucket/a.jsonl", "gs://bucket/a.jsonl", "https://host/a.jsonl", "hf://datasets/a/b"}) {
    EXPECT_THAT(prepare(std::string("[{path: '") + address + "'}]").err, HasSubstr("data are not read from"))
        << address;
  }
}

/// How often the test kills; HONE_HUB_KILLS states another number.
int kills() {
  const char* stated = std::getenv("HONE_HUB_KILLS");
  return stated == nullptr ? 6 : std::atoi(stated);
}

TEST_F(Hub, AKilledDownloadGoesOnAndIsNeverWrong) {
  HubServer::Repository& repository = server_.add_model("org/model", 60 * kMiB + 77);
  for (int i = 0; i < 5; ++i)
    repository.files[fmt::format("part{}.json", i)] = {test_bytes(20'000, static_cast<uint32_t>(i))};
  repository.files["tokenizer.model"] = {test_bytes(25 * kMiB, 9), true};
  server_.faults.pause_us = 8000;
  std::mt19937 random(7);
  int rounds = 0, killed = 0;
  uint64_t most = 0;
  for (; killed < kills(); ++rounds) {
    Process process({"download", "org/model"});
    std::this_thread::sleep_for(std::chrono::milliseconds(60 + random() % 500));
    process.send(SIGKILL);
    killed += process.wait().code == 128 + SIGKILL ? 1 : 0;
    // Whatever has a name has the right bytes.
    for (const auto& [name, file] : repository.files) {
      const fs::path path = snapshot("org/model") / name;
      EXPECT_TRUE(!fs::exists(path) || read_file(path) == file.bytes) << name;
    }
    const fs::path blobs = cache() / "models--org--model" / "blobs";
    if (fs::exists(blobs)) {
      for (const auto& entry : fs::directory_iterator(blobs)) {
        const std::string name = entry.path().filename();
        if (name.ends_with(".incomplete")) continue;
        EXPECT_EQ(testing::hash_of(read_file(entry.path()), name.size() == 64), name);
      }
    }
    if (fs::exists(cache() / "models--org--model/refs/main")) fs::remove_all(cache());  // complete: from the beginning
    most = std::max(most, server_.store_bytes());
  }
  server_.faults.pause_us = 0;
  const Outcome last = run_hone({"download", "org/model"});
  ASSERT_EQ(last.code, 0) << last.err;
  for (const auto& [name, file] : repository.files)
    EXPECT_EQ(read_file(snapshot("org/model") / name), file.bytes) << name;
  EXPECT_THAT(leftovers(), IsEmpty());
  std::printf("killed %d downloads in %d rounds; %.1f MB read in all\n", killed, rounds,
              static_cast<double>(server_.store_bytes()) / 1e6);
}

/// huggingface_hub, if a Python with it is here.
class BesideHuggingFace : public Hub {
 protected:
  void SetUp() override {
    std::string why;
    python_ = python_with("huggingface_hub", why);
    if (python_.empty()) GTEST_SKIP() << why;
    environment_.set("HF_HUB_DISABLE_XET", "1");
    environment_.set("HF_HUB_DISABLE_TELEMETRY", "1");
  }
  /// What a program prints; fails the test if it fails.
  std::string says(const std::string& program) {
    const std::string file = folder_.write("program.py", program), out = (folder_ / "out.txt").string();
    const int code = std::system(fmt::format("'{}' '{}' > '{}' 2>&1", python_, file, out).c_str());
    EXPECT_EQ(code, 0) << read_file(out);
    return read_file(out);
  }
  std::string python_;
};

TEST_F(BesideHuggingFace, ItReadsTheCacheThatHoneWrote) {
  server_.add_model("org/model", 10 * kMiB).files["added_tokens.json"] = {"{\"a\": 1}"};
  ASSERT_EQ(run_hone({"download", "org/model"}).code, 0);
  const std::string said = says(R"(
import os
from huggingface_hub import hf_hub_download, snapshot_download, scan_cache_dir, try_to_load_from_cache, get_cached_repo_tree
from huggingface_hub.file_download import _CACHED_NO_EXIST
print(snapshot_download("org/model", local_files_only=True))
print(hf_hub_download("org/model", "model.safetensors", local_files_only=True))
assert try_to_load_from_cache("org/model", "adapter_config.json") is _CACHED_NO_EXIST
info = scan_cache_dir()
assert not info.warnings, info.warnings
repo, = info.repos
assert repo.repo_id == "org/model" and repo.nb_files == 4, repo
assert len(get_cached_repo_tree("org/model")) == 4
# Online: everything is there.
print(snapshot_download("org/model"))
)");
  EXPECT_EQ(server_.store_bytes(), 10 * kMiB) << said;
  EXPECT_THAT(said, HasSubstr(snapshot("org/model").string()));
  server_["models/org/model"].files["new.json"] = {"{}"};
}

TEST_F(BesideHuggingFace, HoneReadsTheCacheThatItWrote) {
  add_tiny("org/tiny");
  says("from huggingface_hub import snapshot_download\nsnapshot_download('org/tiny')\n");
  environment_.set("HF_HUB_OFFLINE", "1");
  const Outcome inspected = run_hone({"inspect", "org/tiny"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  const std::string data = folder_.write("data.jsonl", progressions(20));
  EXPECT_EQ(run_hone(train_arguments("org/tiny", data, folder_ / "out")).code, 0);
  // File by file, as other libraries do: there is no list of the files then.
  environment_.set("HF_HUB_OFFLINE", nullptr);
  fs::remove_all(cache());
  says(
      "from huggingface_hub import hf_hub_download\nfor f in ['config.json', 'model.safetensors']:\n"
      "  hf_hub_download('org/tiny', f)\n");
  environment_.set("HF_HUB_OFFLINE", "1");
  EXPECT_EQ(run_hone({"inspect", "org/tiny"}).code, 0);
  EXPECT_EQ(run_hone(train_arguments("org/tiny", data, folder_ / "out2")).code, 0);
}

TEST_F(BesideHuggingFace, BothAtOnceShareOneCache) {
  server_.add_model("org/model", 30 * kMiB);
  server_.faults.pause_us = 1000;
  const std::string file =
      folder_.write("both.py", "from huggingface_hub import snapshot_download\nsnapshot_download('org/model')\n");
  std::thread other(
      [&] { EXPECT_EQ(std::system(fmt::format("'{}' '{}' > /dev/null 2>&1", python_, file).c_str()), 0); });
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run_hone({"download", "org/model"}).code, 0);
  other.join();
  EXPECT_EQ(read_file(snapshot("org/model") / "model.safetensors"),
            server_["models/org/model"].files["model.safetensors"].bytes);
  EXPECT_THAT(leftovers(), IsEmpty());
}

TEST_F(BesideHuggingFace, HoneIsAtLeastAsFast) {
  if (std::getenv("HONE_HUB_SPEED") == nullptr)
    GTEST_SKIP() << "HONE_HUB_SPEED=1 compares speeds, with 10 files of 100 MB";
  HubServer::Repository& repository = server_.add_model("org/model", 1000);
  repository.files.erase("model.safetensors");
  for (uint32_t i = 1; i <= 10; ++i) {
    repository.files[fmt::format("model-{:05}-of-00010.safetensors", i)] = {test_bytes(100'000'000, i), true};
  }
  for (const auto& [name, of] : repository.files) testing::hash_of(of.bytes, of.large);
  const char* place = std::getenv("HONE_HUB_SPEED_AT");
  if (place != nullptr) environment_.set("HF_HOME", place);
  const fs::path cache = place != nullptr ? fs::path(place) / "hub" : this->cache();
  const std::string program =
      folder_.write("speed.py",
                    "import time, sys\nfrom huggingface_hub import snapshot_download\n"
                    "t = time.time()\nsnapshot_download('org/model')\nprint(time.time() - t)\n");
  double theirs = 1e9, ours = 1e9;
  for (int round = 0; round < 3; ++round) {
    fs::remove_all(cache);
    const std::string said = says(read_file(program));
    theirs = std::min(theirs, std::stod(said.substr(said.rfind('\n', said.size() - 2) + 1)));
    fs::remove_all(cache);
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(run_hone({"download", "org/model"}).code, 0);
    ours = std::min(ours, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  fs::remove_all(cache);
  std::printf("10 files of 100 MB: huggingface_hub %.2f s, hone %.2f s\n", theirs, ours);
  EXPECT_LE(ours, theirs);
}

}  // namespace
}  // namespace hone
