// Tests of strangers at the ports of ranks: a caller without the run's secret is ignored and does not delay ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <list>
#include <set>
#include <sstream>
#include <thread>

#include "core/base/philox.h"
#include "core/base/program.h"
#include "core/text/json.h"
#include "dist/transport/channel_testing.h"
#include "dist/transport/gathering.h"
#include "dist/transport/transport.h"

namespace hone {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr const char* kHere = "127.0.0.1";

Socket knock(int port) {
  std::string problem;
  for (int i = 0; i < 500; ++i) {
    if (Socket socket = connect_to(kHere, port, 1, problem); socket.open()) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ADD_FAILURE() << "nobody listens: " << problem;
  return {};
}

/// Sends text; false if the connection has ended.
bool say(const Socket& socket, const std::string& text) {
  return ::send(socket.descriptor(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
}

std::string message(char type, const std::string& bytes) {
  std::string text(1, type);
  for (int i = 0; i < 4; ++i) text += static_cast<char>(bytes.size() >> (8 * i));
  return text + bytes;
}

/// The hello message of a protocol without authentication.
std::string hello_without_proof(int port) {
  return message('H', Json{{"host", "x"},
                           {"pid", 1},
                           {"local_rank", 1},
                           {"cores", ""},
                           {"address", ""},
                           {"hone", version()},
                           {"run", "run"},
                           {"port", port},
                           {"rank", 1},
                           {"world_size", 2}}
                          .dump());
}

using Strangers = std::function<void(int port, std::list<Socket>& kept)>;
struct Case {
  const char* name;
  Strangers come;
};

const Case kCases[] = {
    {"Stalled",
     [](int port, auto& kept) {
       for (int i = 0; i < 300; ++i) kept.push_back(knock(port));
     }},
    {"ClosedAtOnce",
     [](int port, auto&) {
       for (int i = 0; i < 50; ++i) knock(port);
     }},
    {"Garbage",
     [](int port, auto& kept) {
       PhiloxSequence random(1);
       for (int i = 0; i < 40; ++i) {
         std::string bytes(1 + random.below(70000), '\0');
         for (char& c : bytes) c = static_cast<char>(random.below(256));
         say(kept.emplace_back(knock(port)), bytes);
       }
     }},
    {"Http", [](int port, auto& kept) { say(kept.emplace_back(knock(port)), "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); }},
    {"HugeLength",
     [](int port, auto& kept) { say(kept.emplace_back(knock(port)), "h\xff\xff\xff\xff" + std::string(1000, 'x')); }},
    {"BegunMessages",
     [](int port, auto& kept) {
       for (int i = 0; i < 40; ++i)
         say(kept.emplace_back(knock(port)), message('h', std::string(32, 'x')).substr(0, 20));
     }},
    {"HelloWithoutProof",
     [](int port, auto& kept) {
       say(kept.emplace_back(knock(port)), hello_without_proof(port));
       say(kept.emplace_back(knock(port)), message('H', R"({"hone": 1, "run": 1})"));
       say(kept.emplace_back(knock(port)), message('E', R"({"reason": "x", "lost": [99], "stuck": true})"));
     }},
    {"WrongProof",
     [](int port, auto& kept) {
       for (const std::string claims : {"{}", "[1", R"({"hone": "", "rank": 1e300})"}) {
         Socket socket = knock(port);
         say(socket, message('h', std::string(32, 'x')) + message('p', std::string(32, 'y') + claims));
         kept.push_back(std::move(socket));
       }
     }},
    {"OtherSecret",
     [](int port, auto& kept) {
       Socket socket = knock(port);
       MessageReader reader;
       const Claims claims{version(), "control", run_digest("run", port), port, 1, 2};
       EXPECT_EQ(prove(socket, reader, claims, [] { return std::string("a guess of a stranger"); }),
                 ProofAnswer::kOtherSecret);
       kept.push_back(std::move(socket));
     }},
};

class StrangersAtTheRendezvous : public ::testing::TestWithParam<Case> {};

TEST_P(StrangersAtTheRendezvous, DelayNobodyAndJoinNothing) {
  auto all = environments(2);
  const int port = all[0].ports[0];
  std::list<Socket> kept;
  Clock::time_point begin;
  const auto errors = [&] {
    std::vector<std::string> first, second;
    std::thread rank_0(
        [&] { first = run_channels({all[0]}, {.rendezvous = 30}, [](ControlChannel& c) { c.barrier(); }); });
    GetParam().come(port, kept);
    begin = Clock::now();
    second = run_channels({all[1]}, {.rendezvous = 30}, [](ControlChannel& c) { c.barrier(); });
    rank_0.join();
    return std::vector<std::string>{first[0], second[0]};
  }();
  EXPECT_THAT(errors, ElementsAre("", ""));
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(4)) << "a stranger is given 5 s, but nobody waits for it";
}

INSTANTIATE_TEST_SUITE_P(All, StrangersAtTheRendezvous, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

/// Ports of this host at which somebody listens.
std::set<int> listening_ports() {
  std::set<int> ports;
  std::ifstream table("/proc/net/tcp");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string number, local, remote, state;
    words >> number >> local >> remote >> state;
    if (state == "0A") ports.insert(std::stoi(local.substr(local.find(':') + 1), nullptr, 16));
  }
  return ports;
}

TEST(Strangers, AtDataPortsAreNotHeard) {
  // Opens as many connections as possible, repeatedly, before and while the ranks connect.
  std::atomic<bool> stop{false};
  size_t knocks = 0;
  const std::set<int> before = listening_ports();
  std::atomic<bool> ranks_have_met{false};
  std::thread stranger([&] {
    std::list<Socket> kept;
    std::string problem;
    while (!stop) {
      for (const int port : ranks_have_met ? listening_ports() : before) {
        if (before.contains(port)) continue;
        kept.push_back(connect_to(kHere, port, 0.2, problem));
        if (++knocks % 3 == 0 && kept.back().open()) say(kept.back(), "h\x20");
      }
      if (kept.size() > 300) kept.clear();
    }
  });
  const auto errors = run_channels(environments(3), {}, [&](ControlChannel& control) {
    ranks_have_met = true;
    if (control.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));  // strangers come first
    const auto transport = connect_tcp(control, 30);
    int got = 0;
    const int own = control.rank(), next = (own + 1) % 3, last = (own + 2) % 3;
    transport->send(next, reinterpret_cast<const std::byte*>(&own), sizeof own);
    transport->receive(last, reinterpret_cast<std::byte*>(&got), sizeof got);
    transport->wait();
    EXPECT_EQ(got, last);
  });
  stop = true;
  stranger.join();
  EXPECT_THAT(errors, Each(""));
  EXPECT_GT(knocks, 10u);
}

/// An authenticated connection of rank 1 of `world_size` that has sent its process id.
RankConnection join_by_hand(const LaunchEnvironment& environment, const std::string& process) {
  RankConnection connection;
  const int port = environment.ports[0];
  connection.socket = knock(port);
  const Claims claims{version(), "control",        run_digest(environment.run, port),
                      port,      environment.rank, environment.world_size};
  EXPECT_EQ(prove(connection.socket, connection.reader, claims, [] { return test_secret().stated; }),
            ProofAnswer::kProven);
  connection.reader.set_longest(kLongestMessage);
  send_message(connection.socket, static_cast<uint8_t>(ControlMessage::kFacts), hello_text(own_facts(1), process));
  return connection;
}

uint8_t type_of(RankConnection& connection) {
  const std::optional<Message> message = receive_message(connection.socket, connection.reader, 5);
  return message ? message->type : 0;
}

TEST(Rendezvous, ALaterHelloOfTheSameProcessReplacesTheEarlierOne) {
  auto all = environments(3);
  std::vector<std::string> errors;
  std::thread rank_0([&] { errors = run_channels({all[0]}, {.rendezvous = 30}, [](ControlChannel&) {}); });
  RankConnection first = join_by_hand(all[1], "a process");
  EXPECT_EQ(type_of(first), static_cast<uint8_t>(ControlMessage::kAccepted));
  RankConnection second = join_by_hand(all[1], "a process");
  EXPECT_EQ(type_of(second), static_cast<uint8_t>(ControlMessage::kAccepted));
  EXPECT_EQ(type_of(first), 0) << "it has been replaced";
  std::thread rank_2([&] { run_channels({all[2]}, {.rendezvous = 30}, [](ControlChannel&) {}); });
  EXPECT_EQ(type_of(second), static_cast<uint8_t>(ControlMessage::kWelcome));
  second.socket.close();
  rank_0.join();
  rank_2.join();
  EXPECT_THAT(errors, ElementsAre(""));
}

TEST(Rendezvous, ARankThatLeavesBeforeTheOthersComeMayBeStartedAgain) {
  auto all = environments(3);
  std::vector<std::string> errors(3);
  std::thread rank_0(
      [&] { errors[0] = run_channels({all[0]}, {.rendezvous = 30}, [](ControlChannel& c) { c.barrier(); })[0]; });
  RankConnection gone = join_by_hand(all[1], "a process");
  EXPECT_EQ(type_of(gone), static_cast<uint8_t>(ControlMessage::kAccepted));
  gone.socket.close();
  const auto others = run_channels({all[1], all[2]}, {.rendezvous = 30}, [](ControlChannel& c) { c.barrier(); });
  rank_0.join();
  EXPECT_EQ(errors[0], "");
  EXPECT_THAT(others, Each(""));
}

TEST(Rendezvous, RanksWithoutACommonSecretSaySoWithinSeconds) {
  const auto all = environments(2);
  std::string problem;
  for (const SecretPlaces& others : {SecretPlaces{.stated = "another secret of a test"},
                                     SecretPlaces{.stated = "", .folders = {"/nowhere"}, .of_this_host = false}}) {
    std::string notice, error;
    std::atomic<bool> stop{false};
    std::thread rank_0([&] {
      const RendezvousHooks hooks{.notice = [&](const std::string& text) { notice = text; },
                                  .check =
                                      [&] {
                                        if (stop) throw UserError("stopped");
                                      }};
      EXPECT_THROW(rendezvous(all[0], test_secret(), {}, hooks), UserError);
    });
    const auto begin = Clock::now();
    try {
      rendezvous(all[1], others);
    } catch (const UserError& found) {
      error = found.message() + " " + found.where();
    }
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(5));
    EXPECT_THAT(error, HasSubstr("rank 1 has no secret in common with rank 0 at 127.0.0.1:"));
    EXPECT_THAT(error, HasSubstr("HONE_RUN_SECRET"));
    stop = true;
    rank_0.join();
    if (!others.stated.empty()) {
      EXPECT_THAT(notice, HasSubstr("rank 0 refused a connection from 127.0.0.1, which has another secret"));
    }
  }
}

TEST(Rendezvous, RanksMeetByAFileThatRankZeroMakes) {
  std::string name = (std::filesystem::temp_directory_path() / "hone-meet-XXXXXX").string();
  const std::filesystem::path folder = ::mkdtemp(name.data());
  const SecretPlaces places{.stated = "", .folders = {folder}, .of_this_host = true};
  const auto all = environments(2);
  {  // the file of a killed run is read again until rank 0 has replaced it
    std::ofstream(folder / secret_file_name("run", all[0].ports[0])) << std::string(64, 'x') << "\n";
    std::filesystem::permissions(folder / secret_file_name("run", all[0].ports[0]), std::filesystem::perms::owner_read);
  }
  std::thread rank_1([&] { EXPECT_NO_THROW(rendezvous(all[1], places)->barrier()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_NO_THROW(rendezvous(all[0], places)->barrier());
  rank_1.join();
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

TEST(Rendezvous, StopsWhenItIsToldTo) {
  std::atomic<bool> stop{false};
  const RendezvousHooks hooks{.check = [&] {
    if (stop) throw UserError("stopped");
  }};
  for (const int rank : {0, 1}) {
    stop = false;
    std::thread waiting([&] {
      EXPECT_THROW(rendezvous(environments(2)[static_cast<size_t>(rank)], test_secret(), {}, hooks), UserError);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto begin = Clock::now();
    stop = true;
    waiting.join();
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(1));
  }
}

TEST(MessageReader, TakesNoMemoryForWhatIsTooLong) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Socket reading(ends[0]), writing(ends[1]);
  MessageReader reader;
  reader.set_longest(100);
  ASSERT_TRUE(say(writing, message('x', std::string(101, 'y'))));
  EXPECT_EQ(reader.read(reading), MessageReader::State::kClosed);
  EXPECT_TRUE(reader.broken());
  // Only the header was read.
  std::string rest(200, '\0');
  EXPECT_EQ(::recv(reading.descriptor(), rest.data(), rest.size(), MSG_DONTWAIT), 101);
}

TEST(MessageReader, LeavesWhatComesLaterToTheKernel) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const Socket reading(ends[0]), writing(ends[1]);
  MessageReader reader;
  ASSERT_TRUE(say(writing, message('a', "") + message('b', "two") + message('c', "3")));
  for (const char type : {'a', 'b', 'c'}) {
    EXPECT_EQ(reader.read(reading), MessageReader::State::kOpen);
    const std::optional<Message> next = reader.next();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->type, type);
  }
  EXPECT_EQ(reader.next(), std::nullopt);
}

}  // namespace
}  // namespace hone
