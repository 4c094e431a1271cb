// Tests of strangers at the ports of runs, and of the secret of ranks, with complete programs.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <list>
#include <map>
#include <sstream>
#include <thread>

#include "program.h"
#include "rank_runs.h"
#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

std::map<int, std::string> listening_ports() {
  std::map<int, std::string> ports;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A") ports[std::stoi(local.substr(colon + 1), nullptr, 16)] = local.substr(0, colon);
    }
  }
  return ports;
}

/// During its lifetime, makes three connections to every port that is opened.
class Strangers {
 public:
  explicit Strangers(std::string said) : said_(std::move(said)), before_(listening_ports()) {
    thread_ = std::thread([this] {
      while (!stop_) come();
    });
  }
  ~Strangers() {
    end();
    for (const int socket : sockets_) ::close(socket);
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;
  void end() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  size_t count() const { return sockets_.size(); }
  /// Addresses of opened ports in the kernel's notation.
  const std::map<int, std::string>& opened() const { return opened_; }

 private:
  void come() {
    for (const auto& [port, address] : listening_ports()) {
      if (before_.contains(port) || comes_[port]++ >= 3) continue;
      opened_[port] = address;
      const sockaddr_in to{AF_INET, htons(static_cast<uint16_t>(port)), {htonl(INADDR_LOOPBACK)}, {}};
      const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (::connect(socket, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
        ::close(socket);
        continue;
      }
      if (!said_.empty()) ::send(socket, said_.data(), said_.size(), MSG_NOSIGNAL);
      sockets_.push_back(socket);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  const std::string said_;
  const std::map<int, std::string> before_;
  std::map<int, int> comes_;
  std::map<int, std::string> opened_;
  std::list<int> sockets_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class RanksAmongStrangers : public ::testing::TestWithParam<const char*> {
 protected:
  Folder folder_;
  const RankRuns runs_{folder_};
};

TEST_P(RanksAmongStrangers, OfHoneLaunchTrainAsIfAlone) {
  Strangers strangers(GetParam());
  std::string output;
  // Ranks of one host connect within milliseconds: some runs end before a stranger connects.
  for (int run = 0; run < 20 && strangers.count() == 0; ++run) {
    output = "run" + std::to_string(run);
    const ShellOutcome outcome =
        run_shell("timeout -k 5 60 " + hone_program() + " launch -n 2 --device cpu --" + runs_.words(output));
    ASSERT_EQ(outcome.code, 0) << outcome.out;
  }
  strangers.end();
  EXPECT_GE(strangers.count(), 1u);
  for (const auto& [port, address] : strangers.opened()) {
    EXPECT_EQ(address, "0100007F") << "port " << port << " is open to the network";
  }
  runs_.expect_losses_of_one_rank(output);
}

TEST_P(RanksAmongStrangers, StartedByHandTrainAsIfAlone) {
  // Strangers connect before rank 1.
  const std::string port = std::to_string(21000 + ::getpid() % 10000);
  const std::string variables = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port;
  Strangers strangers(GetParam());
  const ShellOutcome outcome = run_shell("(RANK=0 " + variables + " timeout -k 5 60 " + hone_program() +
                                         runs_.words("run") + " & sleep 1; RANK=1 " + variables + " timeout -k 5 60 " +
                                         hone_program() + runs_.words("run") + "; code=$?; wait $! && exit $code)");
  strangers.end();
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_GE(strangers.count(), 3u);
  runs_.expect_losses_of_one_rank("run");
}

INSTANTIATE_TEST_SUITE_P(Who, RanksAmongStrangers,
                         ::testing::Values("", "GET / HTTP/1.1\r\n\r\n", "h\x10", "h\xff\xff\xff\xff"),
                         [](const auto& said) { return std::string("Says") + std::to_string(said.index); });

/// Ranks that may be on several hosts, according to their launcher.
class RanksOfSeveralHosts : public ::testing::Test {
 protected:
  /// Runs rank 0 and rank 1, each with words before its command and an output folder.
  ShellOutcome run(const std::string& before_0, const std::string& output_0, const std::string& before_1,
                   const std::string& output_1) const {
    const std::string port = std::to_string(31000 + ::getpid() % 1000);
    // Not recognised as a loopback name, although it resolves to the loopback.
    const std::string variables =
        " WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=0.0.0.0 MASTER_PORT=" + port;
    return run_shell("(RANK=0" + variables + " " + before_0 + " timeout -k 5 20 " + hone_program() +
                     runs_.words(output_0) + " & RANK=1" + variables + " " + before_1 + " timeout -k 5 20 " +
                     hone_program() + runs_.words(output_1) +
                     "; code=$?; [ $code = 0 ] || kill $!; wait $!; exit $code)");
  }

  Folder folder_;
  const RankRuns runs_{folder_};
};

TEST_F(RanksOfSeveralHosts, MeetByAFileInTheOutputFolder) {
  const ShellOutcome outcome = run("", "run", "", "run");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  runs_.expect_losses_of_one_rank("run");
  for (const std::string& name : names_in(folder_ / "run")) EXPECT_FALSE(name.ends_with(".secret")) << name;
}

TEST_F(RanksOfSeveralHosts, WithoutACommonSecretSaySoWithinSeconds) {
  const std::pair<const char*, const char*> secrets[] = {
      {"", ""}, {"HONE_RUN_SECRET=0123456789abcdef", "HONE_RUN_SECRET=fedcba9876543210"}};
  for (const auto& [first, second] : secrets) {
    const auto begin = Clock::now();
    const ShellOutcome outcome = run(first, "one", second, "other");
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
    EXPECT_THAT(outcome.out, HasSubstr("rank 1: error: rank 1 has no secret in common with rank 0"));
    EXPECT_THAT(outcome.out, HasSubstr("HONE_RUN_SECRET"));
    EXPECT_FALSE(fs::exists(folder_ / "other"));
  }
}

TEST_F(RanksOfSeveralHosts, NeedASecretWhereTheVerbHasNoOutputFolder) {
  const ShellOutcome outcome = run_shell("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=node7 timeout -k 5 20 " +
                                         hone_program() + " bench step --model qwen3-30b-a3b");
  EXPECT_EQ(outcome.code, 2) << outcome.out;
  EXPECT_THAT(outcome.out, HasSubstr("HONE_RUN_SECRET"));
}

TEST_F(RanksOfSeveralHosts, KeepTheirSecretToThemselves) {
  const std::string secret = "the-secret-of-this-run-0123456789";
  const ShellOutcome outcome = run("HONE_RUN_SECRET=" + secret, "run", "HONE_RUN_SECRET=" + secret, "run");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_EQ(outcome.out.find(secret), std::string::npos);
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "run")) {
    if (entry.is_regular_file()) {
      EXPECT_EQ(read_file(entry.path()).find(secret), std::string::npos) << entry.path();
    }
  }
}

TEST(Rank, ThatIsStoppedWhileItWaitsLeavesNothing) {
  const Folder folder;
  const RankRuns runs(folder);
  const std::string port = std::to_string(32000 + ::getpid() % 700);
  const auto begin = Clock::now();
  const ShellOutcome outcome =
      run_shell("RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=0.0.0.0 MASTER_PORT=" + port +
                " timeout -s TERM --preserve-status 2 " + hone_program() + runs.words("run"));
  EXPECT_EQ(outcome.code, 75) << outcome.out;
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(8));
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST(HoneLaunch, WaitsForNoMpirun) {
  const Folder folder;
  const RankRuns runs(folder);
  const std::string mpirun = folder.write("mpirun", "#!/bin/sh\ntouch started\nwhile :; do sleep 1; done\n");
  fs::permissions(mpirun, fs::perms::owner_all);
  const ShellOutcome outcome = run_shell("PATH=" + fs::path(mpirun).parent_path().string() + ":$PATH timeout -k 5 60 " +
                                         hone_program() + " launch -n 2 --device cpu --" + runs.words("run"));
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  runs.expect_losses_of_one_rank("run");
}

TEST(HoneLaunch, UnderNohupGoesOnWhenTheTerminalCloses) {
  const Folder folder;
  const RankRuns runs(folder);
  const std::string metrics = (folder / "run" / "metrics.jsonl").string();
  const ShellOutcome outcome =
      run_shell("((trap '' HUP; exec " + hone_program() + " launch -n 2 --device cpu --" +
                runs.words("run", {"max_steps=300"}) + ") & for i in $(seq 100); do [ -s '" + metrics +
                "' ] && break; sleep 0.1; done; kill -HUP $! $(pgrep -P $!); wait $!)");
  EXPECT_EQ(outcome.code, 0) << outcome.out;
  EXPECT_EQ(read_json_lines(metrics).back().at("step"), 300);
}

}  // namespace
}  // namespace hone
