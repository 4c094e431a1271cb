#include "dist/transport/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <sstream>
#include <thread>

#include "core/base/error.h"
#include "dist/transport/channel_testing.h"
#include "dist/transport/rendezvous.h"

namespace hone {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(Rendezvous, RanksFindEachOtherAndExchange) {
  const auto errors = run_channels(environments(4), {}, [](ControlChannel& channel) {
    EXPECT_EQ(channel.ranks().size(), 4u);
    EXPECT_EQ(channel.ranks()[3].local_rank, 3);
    for (int round = 0; round < 20; ++round) {
      const auto text = [&](int rank) { return std::string(static_cast<size_t>(1000 * rank * round), '\0') + "!"; };
      EXPECT_THAT(channel.exchange(text(channel.rank())), ElementsAre(text(0), text(1), text(2), text(3)));
      EXPECT_EQ(channel.any(channel.rank() == round % 5), round % 5 < 4);
    }
    channel.barrier();
  });
  EXPECT_THAT(errors, ElementsAre("", "", "", ""));
}

TEST(Rendezvous, NobodyIsConnectedToItself) {
  // After enough attempts, connect() gets the port that it connects to as its own.
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0, last = 0;
  if (!(file >> first >> last)) GTEST_SKIP() << "the ports that this system gives are not known";
  std::string problem;
  int port = last - (last - first) % 2;  // Linux assigns ports with the parity of the first one
  while (port > first && !listen_at("127.0.0.1", port, problem).open()) port -= 2;
  for (int i = 0; i < 2 * (last - first); ++i) {
    ASSERT_FALSE(connect_to("127.0.0.1", port, 1, problem).open()) << "try " << i;
  }
}

TEST(Rendezvous, RanksKnowWhoSharesTheirCores) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one core is all there is";
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  const auto all = environments(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      if (rank == 1) sched_setaffinity(0, sizeof one, &one);  // affects this thread only
      EXPECT_EQ(rendezvous(all[static_cast<size_t>(rank)], test_secret())->ranks_on_own_cores(), rank == 1 ? 1 : 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Rendezvous, WhatIsNotTheSameIsNamed) {
  const auto errors = run_channels(environments(3), {}, [](ControlChannel& channel) {
    channel.check_same("configuration", "a: 1\nb: 2\n");
    channel.check_same("configuration", channel.rank() == 2 ? "a: 1\nb: 3\n" : "a: 1\nb: 2\n");
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "rank 2 has another configuration than rank 0: 'b: 3' where rank 0 has 'b: 2'");
  }
}

TEST(Rendezvous, RanksThatDoNotComeAreNamed) {
  auto all = environments(4);
  all.erase(all.begin() + 2);
  const auto errors = run_channels(all, {.rendezvous = 1}, [](ControlChannel&) { FAIL(); });
  EXPECT_THAT(errors[0], HasSubstr("rank 2 of 4 did not connect to 127.0.0.1:"));
  EXPECT_THAT(errors[1], HasSubstr("rank 2 of 4 did not connect"));
}

TEST(Rendezvous, RunsWithPortsSideBySideStayApart) {
  // Like two torchruns without run ids, where the first port is in use.
  auto all = environments(2), others = all;
  const int port = all[0].ports[0];
  std::string problem;
  const Socket taken = listen_at("127.0.0.1", port, problem);
  std::atomic<bool> stop{false};
  std::thread stranger([&] {
    while (!stop) accept_from(taken, 0.05);
  });
  for (int i = 0; i < 2; ++i) {
    all[static_cast<size_t>(i)].ports = {port, port + 1, port + 2};
    others[static_cast<size_t>(i)].ports = {port + 1, port + 2};
  }
  all.insert(all.end(), others.begin(), others.end());
  for (int rank = 0; rank < 4; ++rank) all[static_cast<size_t>(rank)].local_rank = rank / 2;  // which run
  const auto errors = run_channels(all, {.rendezvous = 20}, [](ControlChannel& channel) {
    EXPECT_EQ(channel.ranks()[0].local_rank, channel.ranks()[1].local_rank);
  });
  stop = true;
  stranger.join();
  EXPECT_THAT(errors, ElementsAre("", "", "", ""));
}

TEST(Rendezvous, RankZeroThatIsNotThereIsNamed) {
  const auto errors =
      run_channels({environment_of(1, 2, free_port())}, {.rendezvous = 0.5}, [](ControlChannel&) { FAIL(); });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not find rank 0 at 127.0.0.1:"));
  EXPECT_THAT(errors[0], HasSubstr("Connection refused"));
}

TEST(Rendezvous, WhoIsWaitedForIsSaidBeforeTheEnd) {
  const auto notice_of = [](const LaunchEnvironment& environment) {
    std::vector<std::string> notices;
    EXPECT_THROW(rendezvous(environment, test_secret(), {.rendezvous = 1.5, .notice = 0.2},
                            {.notice = [&](const std::string& text) { notices.push_back(text); }}),
                 Error);
    return notices;
  };
  const int port = free_port();
  EXPECT_THAT(notice_of(environment_of(0, 3, port)),
              ElementsAre("rank 0, at 127.0.0.1:" + std::to_string(port) +
                          ", has not heard from ranks 1, 2 of 3; it waits up to 2 s"));
  LaunchEnvironment lost = environment_of(1, 2, port);
  lost.host = "no-such-host.invalid";
  const std::vector<std::string> notices = notice_of(lost);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(notices[0], StartsWith("rank 1 cannot find rank 0 at no-such-host.invalid:"));
}

TEST(Rendezvous, RanksOfAnotherSizeAndRanksThatAreThereTwiceAreRefused) {
  auto sizes = environments(2);
  sizes[1].world_size = 3;
  for (const std::string& error : run_channels(sizes, {.rendezvous = 5}, [](ControlChannel&) { FAIL(); })) {
    EXPECT_THAT(error, HasSubstr("was started as one of 3 ranks, rank 0 as one of 2"));
  }
  auto twice = environments(3);
  twice[2].rank = 1;
  EXPECT_THAT(run_channels(twice, {.rendezvous = 5}, [](ControlChannel&) { FAIL(); })[0],
              HasSubstr("was started twice: another process has this rank"));
}

TEST(Rendezvous, WhoIsNoRankIsIgnored) {
  const auto all = environments(2);
  std::string problem;
  std::atomic<bool> stop{false};
  std::thread stranger([&] {
    for (const std::string text : {"GET / HTTP/1.0\r\n\r\n", "", "H\x02\x00\x00\x00{}", "\xff\xff\xff\xff\xff\xff"}) {
      Socket socket;
      while (!socket.open() && !stop) socket = connect_to("127.0.0.1", all[0].ports[0], 1, problem);
      if (!socket.open()) return;
      (void)!::write(socket.descriptor(), text.data(), text.size());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const auto errors = run_channels(all, {.rendezvous = 20}, [](ControlChannel& channel) { channel.barrier(); });
  stop = true;
  stranger.join();
  EXPECT_THAT(errors, ElementsAre("", ""));
}

TEST(ControlChannel, AFailureReachesAllRanks) {
  std::mutex mutex;
  std::vector<std::vector<int>> lost;
  int ended = 0;
  const auto errors = run_channels(environments(3), {}, [&](ControlChannel& channel) {
    channel.on_end([&] {
      const std::lock_guard lock(mutex);
      ++ended;
    });
    if (channel.rank() == 1) {
      channel.fail("no space left on device");
    } else {
      EXPECT_THROW(channel.exchange("here"), Error);
    }
    {
      const std::lock_guard lock(mutex);
      lost.push_back(channel.lost());
    }
    channel.check();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, StartsWith("rank 1 ("));
    EXPECT_THAT(error, HasSubstr("failed: no space left on device"));
  }
  EXPECT_THAT(lost, ElementsAre(ElementsAre(1), ElementsAre(1), ElementsAre(1)));
  EXPECT_EQ(ended, 3);
}

TEST(ControlChannel, ARankThatEndsEarlyIsNamedToThoseWhoWaitForIt) {
  const auto errors = run_channels(environments(3), {.heartbeat = 0.05}, [](ControlChannel& channel) {
    if (channel.rank() != 2) channel.barrier();
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 2 ("));
  EXPECT_THAT(errors[0], HasSubstr("left while the other ranks were waiting"));
  EXPECT_EQ(errors[1], errors[0]);
}

/// Rank 0 (or `own`) of two ranks; the test writes the messages of the other rank.
struct ScriptedRank {
  explicit ScriptedRank(ControlTimes times, int own = 0) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    other = Socket(ends[1]);
    std::vector<RankConnection> connections(1);
    connections[0].rank = 1 - own;
    connections[0].socket = Socket(ends[0]);
    channel.emplace(own, std::vector<RankFacts>{{"here", ::getpid(), 0}, {"node7", 123, 0}}, std::move(connections),
                    times);
  }
  void say(ControlMessage type, const std::string& text) const {
    EXPECT_TRUE(send_message(other, static_cast<uint8_t>(type), text));
  }
  std::string error() {
    for (int i = 0; i < 2000; ++i) {
      try {
        channel->check();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::kDeviceFailed);
        return error.message();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return "no error";
  }
  Socket other;
  std::optional<ControlChannel> channel;
};

constexpr const char* kAtStep17 = R"({"step": 17, "collectives": 3, "collective": "", "waited": 0})";

TEST(ControlChannel, ARankWhoseConnectionEndsIsLost) {
  ScriptedRank rank({});
  rank.say(ControlMessage::kHeartbeat, kAtStep17);
  rank.other.close();
  EXPECT_EQ(rank.error(), "rank 1 (node7, pid 123) is lost: its connection has ended; last seen at step 17");
  EXPECT_THAT(rank.channel->lost(), ElementsAre(1));
}

TEST(ControlChannel, ARankThatIsSilentIsLost) {
  ScriptedRank rank({.heartbeat = 0.05, .silence = 0.4});
  EXPECT_THAT(rank.error(), HasSubstr("rank 1 (node7, pid 123) is lost: nothing was heard of it for"));
}

TEST(ControlChannel, ARankThatKeepsACollectiveWaitingIsNamed) {
  ScriptedRank rank({.heartbeat = 0.05, .silence = 5, .hang = 0.3});
  rank.say(ControlMessage::kHeartbeat, kAtStep17);
  rank.channel->at_step(18);
  for (int i = 0; i < 4; ++i) rank.channel->begin_collective("all-reduce");
  rank.channel->end_collectives(3);
  const std::string error = rank.error();
  EXPECT_THAT(error, StartsWith("all-reduce number 4 of step 18 has waited"));
  EXPECT_THAT(error, HasSubstr("for rank 1 (node7, pid 123), which is at step 17 and has reached 3 collectives"));
  EXPECT_THAT(rank.channel->lost(), ElementsAre(1));
}

TEST(ControlChannel, CollectivesThatHaveEndedKeepNobodyWaiting) {
  ScriptedRank rank({.heartbeat = 0.05, .silence = 5, .hang = 0.1});
  rank.say(ControlMessage::kHeartbeat, kAtStep17);
  for (int i = 0; i < 4; ++i) rank.channel->begin_collective("all-reduce");
  rank.channel->end_collectives(4);
  rank.channel->end_collectives(2);  // ends those of a lane that is late
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_NO_THROW(rank.channel->check());
}

TEST(ControlChannel, ARankThatDoesNotExchangeIsNamed) {
  ScriptedRank rank({.heartbeat = 0.05, .silence = 5, .hang = 0.3});
  EXPECT_THROW(rank.channel->barrier(), Error);
  EXPECT_THAT(rank.error(), HasSubstr("(ddp_timeout) for rank 1 (node7, pid 123)"));
}

TEST(ControlChannel, ARankThatLeavesWithAGoodbyeIsNotLost) {
  ScriptedRank rank({.heartbeat = 0.05});
  rank.say(ControlMessage::kGoodbye, "");
  rank.other.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_NO_THROW(rank.channel->check());
}

TEST(ControlChannel, RubbishIsALostRankAndNoCrash) {
  for (const char* text : {"", "[1", "{}", R"({"step": "x", "collectives": 3, "collective": "", "waited": 0})"}) {
    ScriptedRank rank({.heartbeat = 0.05});
    rank.say(ControlMessage::kHeartbeat, text);
    EXPECT_THAT(rank.error(), HasSubstr("it sent an invalid message")) << text;
  }
  ScriptedRank rank({.heartbeat = 0.05});
  EXPECT_EQ(::send(rank.other.descriptor(), "\xff\xff\xff\xff\xff\xff", 6, MSG_NOSIGNAL), 6);
  EXPECT_THAT(rank.error(), HasSubstr("its connection has ended"));
}

TEST(ControlChannel, WhatARankMayNotSayIsALostRankAndNoCrash) {
  const std::pair<ControlMessage, std::string> wrong[] = {
      {ControlMessage::kEnded, R"({"reason": "hello", "lost": [99], "stuck": true})"},
      {ControlMessage::kTexts, pack_texts({"a", "b"})},
      {ControlMessage::kWelcome, "[]"},
      {ControlMessage::kHeartbeat, R"({"step": -1, "collectives": 3, "collective": "", "waited": 0})"},
      {ControlMessage::kHeartbeat, R"({"step": 1e300, "collectives": 3, "collective": "", "waited": 0})"}};
  for (const auto& [type, text] : wrong) {
    ScriptedRank rank({.heartbeat = 0.05});
    rank.say(type, text);
    EXPECT_THAT(rank.error(), HasSubstr("it sent an invalid message")) << text;
    rank.other.close();
  }
}

TEST(ControlChannel, RankZeroMayNotSayEverythingEither) {
  for (const std::string text : {R"({"reason": "x", "lost": [2], "stuck": true})", R"({"reason": "x", "lost": [-1]})",
                                 R"({"reason": "x", "lost": [1e99], "stuck": true})", "[1"}) {
    ScriptedRank rank({.heartbeat = 0.05}, 1);
    rank.say(ControlMessage::kEnded, text);
    EXPECT_THAT(rank.error(), HasSubstr("it sent an invalid message")) << text;
    rank.other.close();
  }
  for (const std::string& text : {std::string("\xff\xff\xff\xff\xff\xff\xff\xff"), pack_texts({"one"})}) {
    ScriptedRank rank({.heartbeat = 0.05}, 1);
    rank.say(ControlMessage::kTexts, text);
    try {
      rank.channel->barrier();
      FAIL() << "not an exchange";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("without one text per rank"));
    }
    rank.other.close();
  }
}

/// A sleeping process for tests of end_process().
struct Sleeper {
  Sleeper() : pid(::fork()) {
    if (pid > 0) return;
    ::sleep(60);
    ::_exit(0);
  }
  ~Sleeper() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  ProcessPlace place() const {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text((std::istreambuf_iterator<char>(file)), {}), skipped;
    std::istringstream rest(text.substr(text.rfind(')') + 1));
    ProcessPlace place = own_place();
    for (int field = 3; field < 22; ++field) rest >> skipped;
    rest >> place.start_time;
    return place;
  }
  bool has_ended() const {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid;
  }
  const pid_t pid;
};

TEST(EndProcess, EndsTheProcessThatIsMeantAlone) {
  const Sleeper sleeper;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ProcessPlace wrong = sleeper.place();
  wrong.start_time += 1;  // an earlier process with this id
  EXPECT_FALSE(end_process(sleeper.pid, wrong));
  wrong = sleeper.place();
  wrong.boot = "another boot";
  EXPECT_FALSE(end_process(sleeper.pid, wrong));
  wrong = sleeper.place();
  wrong.pid_namespace = "pid:[1]";
  EXPECT_FALSE(end_process(sleeper.pid, wrong));
  EXPECT_FALSE(end_process(sleeper.pid, {}));
  EXPECT_FALSE(end_process(::getpid(), own_place()));
  EXPECT_FALSE(sleeper.has_ended());
  EXPECT_TRUE(end_process(sleeper.pid, sleeper.place()));
  for (int i = 0; i < 200 && !sleeper.has_ended(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_TRUE(sleeper.has_ended());
}

TEST(ControlMessages, TextsComeBackAndRubbishDoesNot) {
  const std::vector<std::string> texts = {"", std::string("\0a", 2), std::string(70000, 'x')};
  EXPECT_EQ(unpack_texts(pack_texts(texts)), texts);
  EXPECT_EQ(unpack_texts(pack_texts(texts).substr(0, 100)), std::nullopt);
  EXPECT_EQ(unpack_texts("\xff\xff\xff\xff\xff\xff\xff\xff"), std::nullopt);
}

}  // namespace
}  // namespace hone
