#include "report/page/status_server.h"

#include <gmock/gmock.h>
#include <httplib.h>

#include <chrono>
#include <list>
#include <thread>

#include "core/text/json.h"
#include "report/folder_testing.h"

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

class Status : public testing::Test {
 protected:
  void write_step(int step) const {
    write_text(folder_ / "metrics.jsonl", "{\"step\":" + std::to_string(step) + ",\"loss\":1.5,\"eta\":60}\n");
  }

  /// The next event that has data, and its id; asks for at most ten seconds.
  std::pair<Json, std::string> next(int port, const std::string& last = "") const {
    httplib::Client client("127.0.0.1", port);
    const httplib::Headers headers = {{"Last-Event-ID", last}};
    for (int i = 0; i < 200; ++i) {
      const auto answer = client.Get("/events", last.empty() ? httplib::Headers{} : headers);
      EXPECT_TRUE(answer);
      if (!answer) break;
      EXPECT_EQ(answer->get_header_value("Content-Type"), "text/event-stream");
      EXPECT_THAT(answer->body, testing::StartsWith("retry: "));
      EXPECT_THAT(answer->body, testing::EndsWith("\n\n"));
      const size_t id = answer->body.find("\nid: "), data = answer->body.find("\ndata: ");
      if (data != std::string::npos) {
        return {Json::parse(answer->body.substr(data + 7)), answer->body.substr(id + 5, data - id - 5)};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return {};
  }

  TestFolder folder_;
};

TEST_F(Status, ThePageFollowsTheFolder) {
  const StatusServer server(folder_.path(), "127.0.0.1", 0);
  httplib::Client client("127.0.0.1", server.port());
  const auto page = client.Get("/");
  ASSERT_TRUE(page);
  EXPECT_THAT(page->body, HasSubstr("\"kind\":\"live\""));
  EXPECT_THAT(page->body, HasSubstr("connect-src 'self'"));
  const auto [waiting, none] = next(server.port());
  EXPECT_EQ(waiting["kind"], "waiting") << "there is no run yet";
  write_step(3);
  const auto [first, id] = next(server.port(), none);
  EXPECT_EQ(first["kind"], "run");
  EXPECT_EQ(first["runs"][0]["step"], 3);
  EXPECT_EQ(first["runs"][0]["summary"]["seconds_left"], 60);
  const auto same = client.Get("/events", httplib::Headers{{"Last-Event-ID", id}});
  ASSERT_TRUE(same);
  EXPECT_THAT(same->body, Not(HasSubstr("data:"))) << "nothing has changed";
  write_step(12);
  EXPECT_EQ(next(server.port(), id).first["runs"][0]["step"], 12);
}

TEST_F(Status, APageLivesOverARestartOfItsServer) {
  write_step(3);
  std::string id;
  int port = 0;
  {
    const StatusServer server(folder_.path(), "127.0.0.1", 0);
    port = server.port();
    id = next(port).second;
  }
  const StatusServer again(folder_.path(), "127.0.0.1", port);
  write_step(14);
  EXPECT_EQ(next(port, id).first["runs"][0]["step"], 14);
}

TEST_F(Status, ItIsReadOnlyAndAnswersItsOwnAddressAlone) {
  write_step(1);
  const StatusServer server(folder_.path(), "127.0.0.1", 0);
  httplib::Client client("127.0.0.1", server.port());
  for (const char* path : {"/", "/events"}) {
    const auto foreign = client.Get(path, httplib::Headers{{"Host", "evil.example"}});
    ASSERT_TRUE(foreign);
    EXPECT_EQ(foreign->status, 421) << path;
    EXPECT_THAT(foreign->body, Not(HasSubstr("loss")));
  }
  EXPECT_EQ(client.Get("/metrics.jsonl")->status, 404);
  EXPECT_EQ(client.Get("/../metrics.jsonl")->status, 404);
  EXPECT_EQ(client.Post("/", "x", "text/plain")->status, 404);
}

TEST_F(Status, SlowReadersDoNotKeepOthersWaiting) {
  write_step(5);
  const StatusServer server(folder_.path(), "127.0.0.1", 0);
  ASSERT_EQ(next(server.port()).first["kind"], "run");
  struct Slow {
    explicit Slow(int port) : socket(::socket(AF_INET, SOCK_STREAM, 0)) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(static_cast<uint16_t>(port));
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      EXPECT_EQ(::connect(socket, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
      const std::string request = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
      EXPECT_EQ(::send(socket, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    }
    ~Slow() { ::close(socket); }
    int socket;
  };
  std::list<Slow> readers;  // that read nothing
  for (int i = 0; i < 10; ++i) readers.emplace_back(server.port());
  const auto begin = std::chrono::steady_clock::now();
  httplib::Client client("127.0.0.1", server.port());
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(client.Get("/"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

}  // namespace
}  // namespace hone
