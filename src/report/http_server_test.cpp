#include "report/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <mutex>
#include <thread>

#include "report/stranger_testing.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;

int refusal_of(std::string_view text) {
  int refusal = 0;
  return parse_http_head(text, refusal) ? 200 : refusal;
}

TEST(HttpHead, IsReadByItsGrammar) {
  int refusal = 0;
  const auto head = parse_http_head(
      "POST /v1/x?a=b%20c HTTP/1.1\r\nHost: a:1\r\nX-Two:  1 \r\nx-two: 2\r\nContent-Length: 12\r\n\r\n", refusal);
  ASSERT_TRUE(head);
  EXPECT_EQ(head->request.method, "POST");
  EXPECT_EQ(head->request.path, "/v1/x");
  EXPECT_EQ(head->request.query, "a=b%20c");
  EXPECT_EQ(*head->request.header("x-two"), "1, 2");
  EXPECT_EQ(head->body_bytes, 12u);
  EXPECT_TRUE(head->keep_alive);
  EXPECT_EQ(head->request.header("x-three"), nullptr);
  EXPECT_FALSE(parse_http_head("GET / HTTP/1.1\r\nConnection: Close\r\n\r\n", refusal)->keep_alive);
  EXPECT_FALSE(parse_http_head("GET / HTTP/1.0\n\n", refusal)->keep_alive);
  EXPECT_TRUE(parse_http_head("GET / HTTP/1.0\nConnection: keep-alive\n\n", refusal)->keep_alive);
  EXPECT_TRUE(parse_http_head("PUT / HTTP/1.1\nExpect: 100-continue\n\n", refusal)->expects_continue);
}

TEST(HttpHead, RefusesWhatIsNone) {
  for (const char* text :
       {"\r\n\r\n", "GET /\r\n\r\n", "GET  / HTTP/1.1\r\n\r\n", "GET x HTTP/1.1\r\n\r\n", "G T / HTTP/1.1\r\n\r\n",
        "GET /\x01 HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\nA : 1\r\n\r\n",
        "GET / HTTP/1.1\r\nA: 1\r\n folded\r\n\r\n", "GET / HTTP/1.1\r\nA: \x01\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length:\r\n\r\n", "GET / HTTP/1.1\r\nContent-Length: 1\r\ncontent-length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n"}) {
    EXPECT_EQ(refusal_of(text), 400) << text;
  }
  EXPECT_EQ(refusal_of("GET / HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(refusal_of("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"), 411);
}

TEST(HttpHost, AddressesAndOwnNamesAreOwn) {
  for (const char* own :
       {"localhost", "localhost:8420", "127.0.0.1:8420", "[::1]:8420", "10.0.0.7", "LOCALHOST:1", "box:8420"}) {
    EXPECT_TRUE(is_own_host(own, "box")) << own;
  }
  for (const char* foreign :
       {"", "evil.example", "evil.example:8420", "localhost.evil.example", "127.0.0.1.evil.example", ":8420"}) {
    EXPECT_FALSE(is_own_host(foreign, "0.0.0.0")) << foreign;
  }
}

/// Answers /echo with the body, /later from another thread, /pieces in three pieces, /never not at all.
class Echo {
 public:
  explicit Echo(HttpLimits limits = {.body = 1000})
      : server("127.0.0.1", 0, limits, [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
          const std::lock_guard lock(mutex);
          if (request.path == "/echo") reply->send(200, "text/plain", request.body, {{"X-Path", request.path}});
          if (request.path == "/later") threads.emplace_back([reply] { reply->send(200, "text/plain", "later"); });
          if (request.path == "/pieces") {
            reply->begin(200, "text/plain");
            for (const char* piece : {"one ", "two ", "three"}) reply->write(piece);
            reply->end();
          }
          if (request.path == "/open" || request.path == "/broken") {
            reply->begin(200, "text/plain");
            reply->write("begun");
          }
          if (request.path == "/open") open.push_back(reply);
        }) {}
  ~Echo() {
    for (std::thread& thread : threads) thread.join();
  }
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;

  std::shared_ptr<HttpReply> last_open() {
    const std::lock_guard lock(mutex);
    return open.empty() ? nullptr : open.back();
  }
  int port() const { return server.port(); }

  std::mutex mutex;
  std::deque<std::shared_ptr<HttpReply>> open;
  std::vector<std::thread> threads;
  HttpServer server;
};

bool soon(const std::function<bool()>& holds) {
  for (int i = 0; i < 500; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

TEST(HttpServer, AnswersAtOnceLaterAndInPieces) {
  Echo echo;
  httplib::Client client("127.0.0.1", echo.port());
  client.set_keep_alive(true);
  for (int i = 0; i < 3; ++i) {
    const auto same = client.Post("/echo", std::string(1000, 'x'), "text/plain");
    ASSERT_TRUE(same);
    EXPECT_EQ(same->body, std::string(1000, 'x'));
    EXPECT_EQ(same->get_header_value("X-Path"), "/echo");
    EXPECT_EQ(client.Get("/later")->body, "later");
    EXPECT_EQ(client.Get("/pieces")->body, "one two three");
    EXPECT_EQ(client.Get("/never")->status, 500) << "a reply that nobody gives";
  }
  EXPECT_EQ(client.Post("/echo", std::string(1001, 'x'), "text/plain")->status, 413);
}

TEST(HttpServer, AnswersRequestsThatFollowEachOtherInTheirOrder) {
  Echo echo;
  const Stranger stranger(echo.port());
  stranger.say(
      "POST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\naGET /later HTTP/1.1\r\n\r\nPOST /echo HTTP/1.1\r\n"
      "Content-Length: 1\r\nConnection: close\r\n\r\nc");
  const std::string all = stranger.hear();
  const size_t first = all.find("\r\n\r\na"), second = all.find("\r\n\r\nlater"), third = all.find("\r\n\r\nc");
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_NE(third, std::string::npos);
}

TEST(HttpServer, LetsABodyComeThatWaitsToBeAskedFor) {
  Echo echo;
  const Stranger stranger(echo.port());
  stranger.say("POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n");
  EXPECT_THAT(stranger.hear("\r\n\r\n"), StartsWith("HTTP/1.1 100 "));
  stranger.say("abc");
  EXPECT_THAT(stranger.hear(), testing::EndsWith("\r\n\r\nabc"));
}

TEST(HttpServer, KnowsThatAClientHasLeft) {
  Echo echo;
  auto stranger = std::make_unique<Stranger>(echo.port());
  stranger->say("GET /open HTTP/1.1\r\n\r\n");
  EXPECT_THAT(stranger->hear("begun"), HasSubstr("5\r\nbegun"));
  ASSERT_NE(echo.last_open(), nullptr);
  EXPECT_FALSE(echo.last_open()->gone());
  stranger.reset();
  EXPECT_TRUE(soon([&] { return echo.last_open()->gone(); }));
  echo.last_open()->write("nobody hears it");
  EXPECT_EQ(httplib::Client("127.0.0.1", echo.port()).Get("/later")->body, "later");
}

TEST(HttpServer, GivesUpAReaderWhoDoesNotRead) {
  Echo echo({.unsent = 1 << 16, .stalled_seconds = 0.5});
  const Stranger stranger(echo.port());
  stranger.say("GET /open HTTP/1.1\r\n\r\n");
  stranger.hear("begun");
  const std::string piece(1 << 14, 'x');
  EXPECT_TRUE(soon([&] {
    echo.last_open()->write(piece);
    return echo.last_open()->gone();
  }));
}

TEST(HttpServer, AnAnswerThatBreaksOffHasNoEnd) {
  Echo echo;
  const Stranger stranger(echo.port());
  stranger.say("GET /broken HTTP/1.1\r\n\r\n");
  const std::string all = stranger.hear();
  EXPECT_THAT(all, HasSubstr("begun"));
  EXPECT_THAT(all, testing::Not(HasSubstr("\r\n0\r\n")));
}

TEST(HttpServer, SlowAndManyClientsKeepNobodyWaiting) {
  Echo echo({.clients = 8, .body = 1000, .request_seconds = 0.5});
  std::deque<Stranger> slow;
  for (int i = 0; i < 20; ++i) slow.emplace_back(echo.port()).say("POST /echo HTTP/1.1\r\nContent-Length: 9\r\n\r\na");
  EXPECT_EQ(httplib::Client("127.0.0.1", echo.port()).Get("/later")->body, "later");
  EXPECT_THAT(slow.back().hear(), StartsWith("HTTP/1.1 408 "));
  // Those that wait for an answer are not replaced; a further one is refused.
  std::deque<Stranger> open;
  for (int i = 0; i < 8; ++i) {
    open.emplace_back(echo.port()).say("GET /open HTTP/1.1\r\n\r\n");
    EXPECT_THAT(open.back().hear("begun"), HasSubstr("begun"));
  }
  EXPECT_THAT(Stranger(echo.port()).hear(), StartsWith("HTTP/1.1 503 "));
}

TEST(HttpServer, EndsAtOnceAndRepliesOutliveIt) {
  auto echo = std::make_unique<Echo>();
  const Stranger stranger(echo->port());
  stranger.say("GET /open HTTP/1.1\r\n\r\n");
  stranger.hear("begun");
  const std::shared_ptr<HttpReply> reply = echo->last_open();
  const auto begin = std::chrono::steady_clock::now();
  echo.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
  EXPECT_TRUE(reply->gone());
  reply->write("late");
  reply->end();
}

}  // namespace
}  // namespace hone
