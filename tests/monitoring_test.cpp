// Tests of monitoring: the state that a run reports while it trains, and its files in other tools.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <httplib.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <thread>

#include "device_main.h"
#include "program.h"
#include "shell.h"

extern char** environ;

namespace hone {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// A port that was free a moment ago.
int free_port() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(listener);
  return ntohs(address.sin_port);
}

/// The output of a Python script, as JSON.
Json python_says(const std::string& python, const Folder& folder, const std::string& script,
                 const std::string& arguments) {
  const std::string file = folder.write("script.py", script);
  FILE* pipe = popen(fmt::format("'{}' -W ignore '{}' {} 2>'{}.err'", python, file, arguments, file).c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  for (size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), got);
  EXPECT_EQ(pclose(pipe), 0) << read_file(file + ".err");
  return Json::parse(text, nullptr, false);
}

/// A background process with its children; the destructor kills them.
class Background {
 public:
  Background(std::vector<std::string> words, const fs::path& output) {
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 1, output.c_str(), O_WRONLY | O_CREAT, 0644);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    EXPECT_EQ(posix_spawn(&id_, words[0].c_str(), &files, &attributes, pointers.data(), environ), 0) << words[0];
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }
  ~Background() {
    kill(-id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

 private:
  pid_t id_ = -1;
};

/// Requests the path until the answer is 200, for at most two minutes: Python starts slowly on a busy machine.
bool answers(int port, const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (std::chrono::steady_clock::now() < deadline) {
    httplib::Client client("127.0.0.1", port);
    if (const auto result = client.Get(path); result && result->status == 200) return true;
    std::this_thread::sleep_for(milliseconds(100));
  }
  return false;
}

TEST(Monitoring, ARunWritesEveryNameThatUsersPlot) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const Outcome outcome = run_hone(
      train_arguments(model, data, folder / "out", {"max_steps=4", "eval_steps=4", "val_split=4", "dtype=float32"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::vector<Json> lines = read_json_lines(folder / "out/metrics.jsonl");
  ASSERT_EQ(lines.size(), 5u);
  for (const char* name : {"step",
                           "epoch",
                           "loss",
                           "grad_norm",
                           "learning_rate",
                           "num_tokens",
                           "num_supervised_tokens",
                           "tokens_per_second",
                           "step_time",
                           "mean_token_accuracy",
                           "entropy",
                           "memory/max_alloc",
                           "memory/host_rss",
                           "mfu",
                           "eta",
                           "router/aux_loss",
                           "router/load_max_over_mean",
                           "router/entropy",
                           "router/dead_experts",
                           "router/dropped_tokens",
                           "data/packing_efficiency",
                           "data/wait",
                           "data/dropped_samples",
                           "step_time_sec",
                           "avg_step_time_sec",
                           "time_to_completion_sec",
                           "estimated_total_time_sec",
                           "step_peak_memory_allocated_MB",
                           "step_peak_memory_reserved_MB",
                           "total_peak_memory_allocated_MB",
                           "total_peak_memory_reserved_MB",
                           "step_tokens_per_second",
                           "avg_tokens_per_second"}) {
    ASSERT_TRUE(lines[3].contains(name)) << name;
    EXPECT_TRUE(lines[3][name].is_number()) << name;
  }
  for (const char* name : {"eval_loss", "eval_perplexity", "eval_mean_token_accuracy"}) {
    EXPECT_TRUE(lines[4].contains(name)) << name;
  }
  // The first two steps warm up; then the names agree with the canonical ones, MB being 2^20 bytes.
  EXPECT_FALSE(lines[1].contains("step_time_sec"));
  const Json& third = lines[2];
  const auto number = [&](const char* name) { return third[name].get<double>(); };
  EXPECT_DOUBLE_EQ(number("step_time_sec"), number("step_time"));
  EXPECT_DOUBLE_EQ(number("step_peak_memory_reserved_MB"), number("memory/max_alloc") / (1 << 20));
  EXPECT_NEAR(number("step_tokens_per_second"), number("tokens_per_second"), 1e-6 * number("tokens_per_second"));
  EXPECT_GT(number("step_peak_memory_allocated_MB"), 0);
  EXPECT_GT(number("mfu"), 0);
  EXPECT_LT(number("mfu"), 2);  // the rate was measured on a machine with other work
  const Json state = Json::parse(read_file(folder / "out/trainer_state.json"));
  ASSERT_EQ(state["log_history"].size(), 5u);
  EXPECT_EQ(state["log_history"][3], lines[3]);
}

/// The values of metrics.jsonl by name and step; the last one written for each step.
std::map<std::string, std::map<int64_t, double>> values_by_name(const fs::path& metrics) {
  std::map<std::string, std::map<int64_t, double>> values;
  for (const Json& line : read_json_lines(metrics)) {
    for (const auto& [name, value] : line.items()) {
      if (name != "step" && value.is_number()) values[name][line["step"]] = value;
    }
  }
  return values;
}

TEST(Monitoring, TensorBoardReadsWhatARunAndItsResumptionWrote) {
  std::string why;
  const std::string python = python_with("tensorboard", why);
  if (python.empty()) GTEST_SKIP() << why;
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const auto train = [&](const std::string& resume) {
    return run_hone(train_arguments(model, data, folder / "out", {"max_steps=4", "save_steps=2", resume}));
  };
  ASSERT_EQ(train("resume=false").code, 0);
  fs::remove_all(folder / "out/checkpoint-4");
  ASSERT_EQ(train("resume=auto").code, 0);  // steps 3 and 4 again, in a separate file
  const Json read = python_says(python, folder, R"(
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
events.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}))
)",
                                "'" + (folder / "out/runs").string() + "'");
  ASSERT_TRUE(read.is_object());
  const auto written = values_by_name(folder / "out/metrics.jsonl");
  for (const auto& [name, points] : written) {
    ASSERT_TRUE(read.contains(name)) << name;
    ASSERT_EQ(read[name].size(), points.size()) << name;
    size_t i = 0;
    for (const auto& [step, value] : points) {
      EXPECT_EQ(read[name][i][0], step) << name;
      EXPECT_EQ(read[name][i][1].get<float>(), static_cast<float>(value)) << name << " at step " << step;
      ++i;
    }
  }
  // A tag whose steps were all discarded remains without points.
  for (const auto& [name, points] : read.items()) EXPECT_TRUE(written.contains(name) || points.empty()) << name;
}

TEST(Monitoring, AnMlflowServerHasTheWholeRun) {
  std::string why;
  const std::string python = python_with("mlflow", why);
  if (python.empty()) GTEST_SKIP() << why;
  const Folder folder;
  const int port = free_port();
  const Background server({python, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", std::to_string(port),
                           "--workers", "1", "--backend-store-uri", "sqlite:///" + (folder / "mlflow.db").string(),
                           "--default-artifact-root", (folder / "artifacts").string()},
                          folder / "server.log");
  ASSERT_TRUE(answers(port, "/health")) << read_file(folder / "server.log");
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const std::string uri = fmt::format("http://127.0.0.1:{}", port);
  const auto train = [&](const std::string& steps, const std::string& resume) {
    return run_hone(train_arguments(
        model, data, folder / "out",
        {steps, resume, "save_steps=2", "report_to=[jsonl,mlflow]", "run_name=first", "mlflow_tracking_uri=" + uri,
         "mlflow_experiment_name=tests of hone", "mlflow_tags={team: a b}"}));
  };
  const Outcome first = train("max_steps=4", "resume=false"), second = train("max_steps=6", "resume=auto");
  ASSERT_EQ(first.code, 0) << first.err;
  ASSERT_EQ(second.code, 0) << second.err;
  EXPECT_NE(first.out.find("MLflow: run "), std::string::npos) << first.out;
  EXPECT_EQ(first.out.find("dropped since"), std::string::npos) << first.out;
  EXPECT_EQ(second.out.find("refuse"), std::string::npos) << second.out;
  const Json runs = python_says(python, folder, R"(
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name("tests of hone")
runs = [{"status": r.info.status, "name": r.info.run_name, "params": r.data.params, "tags": r.data.tags,
         "metrics": {k: [[p.step, p.value] for p in client.get_metric_history(r.info.run_id, k)] for k in r.data.metrics}}
        for r in client.search_runs([experiment.experiment_id])]
print(json.dumps(runs))
)",
                                uri);
  ASSERT_EQ(runs.size(), 1u) << runs;  // the resumed run continued the same MLflow run
  const Json& run = runs[0];
  EXPECT_EQ(run["status"], "FINISHED");
  EXPECT_EQ(run["name"], "first");
  EXPECT_EQ(run["tags"]["team"], "a b");
  EXPECT_EQ(run["params"]["max_steps"], "4");
  EXPECT_EQ(run["params"]["lr_scheduler_type"], "constant");
  for (const auto& [name, points] : values_by_name(folder / "out/metrics.jsonl")) {
    ASSERT_TRUE(run["metrics"].contains(name)) << name;
    std::map<int64_t, double> kept;
    for (const Json& point : run["metrics"][name]) kept[point[0]] = point[1];
    EXPECT_EQ(kept, points) << name;
  }
}

TEST(Monitoring, AnMlflowServerThatIsNotThereStopsNothing) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const Outcome outcome =
      run_hone(train_arguments(model, data, folder / "out",
                               {"max_steps=3", "report_to=[jsonl,mlflow]",
                                fmt::format("mlflow_tracking_uri=http://127.0.0.1:{}", free_port())}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("retrying while training continues"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("dropped because it did not accept them"), std::string::npos) << outcome.out;
  EXPECT_EQ(read_json_lines(folder / "out/metrics.jsonl").size(), 3u);
}

TEST(Monitoring, ARunServesItsNumbersWhileItGoesOn) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const int port = free_port();
  Process process(train_arguments(model, data, folder / "out",
                                  {"max_steps=1000000", "run_name=served", fmt::format("metrics_port={}", port)}));
  ASSERT_TRUE(answers(port, "/health"));
  httplib::Client client("127.0.0.1", port);
  std::string metrics;
  for (int i = 0; i < 600 && metrics.find("\nhone_loss ") == std::string::npos; ++i) {
    const auto result = client.Get("/metrics");
    if (result) metrics = result->body;
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_NE(metrics.find("\nhone_loss "), std::string::npos) << metrics;
  EXPECT_NE(metrics.find("hone_run_info{run=\"served\""), std::string::npos) << metrics;
  const auto status = client.Get("/status");
  ASSERT_TRUE(status);
  const Json json = Json::parse(status->body);
  EXPECT_GT(json["step"], 0);
  EXPECT_EQ(json["total_steps"], 1000000);
  EXPECT_TRUE(json["metrics"].contains("router/aux_loss"));
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

/// The data of the first event of a page's server that has some.
Json first_event(int port) {
  httplib::Client client("127.0.0.1", port);
  for (int i = 0; i < 600; ++i) {
    const auto answer = client.Get("/events");
    const size_t at = answer ? answer->body.find("\ndata: ") : std::string::npos;
    if (at != std::string::npos && answer->body.find("\"loss\"") != std::string::npos) {
      return Json::parse(answer->body.substr(at + 7));
    }
    std::this_thread::sleep_for(milliseconds(50));
  }
  return nullptr;
}

TEST(Monitoring, ThePageOfARunIsServedByItAndByStatus) {
  const Folder folder;
  const std::string model = make_model(folder), data = folder.write("data.jsonl", progressions(40));
  const int port = free_port();
  Process process(
      train_arguments(model, data, folder / "out", {"max_steps=1000000", fmt::format("status_port={}", port)}));
  const Json during = first_event(port);
  ASSERT_TRUE(during.is_object());
  EXPECT_EQ(during["runs"][0]["total_steps"], 1000000);
  EXPECT_EQ(during["runs"][0]["state"]["kind"], "open");
  EXPECT_GT(during["runs"][0]["summary"]["seconds_left"].get<double>(), 0);
  process.send(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
  const int other = free_port();
  Process status({"status", (folder / "out").string(), "--port", std::to_string(other)});
  ASSERT_TRUE(answers(other, "/"));
  EXPECT_EQ(first_event(other)["runs"][0]["state"]["text"], "stopped by SIGTERM");
  status.send(SIGINT);
  EXPECT_EQ(status.wait().code, 0);
}

}  // namespace
}  // namespace hone
