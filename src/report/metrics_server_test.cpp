#include "report/metrics_server.h"
#include "core/text/json.h"
#include "report/http_server.h"
#include "report/stranger_testing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

#include <chrono>
#include <list>
#include <system_error>

namespace hone {
namespace {

using testing::HasSubstr;
using testing::Not;

ServedStatus status_of_a_run() {
  ServedStatus status{.run_name = "a \"b\"\\c", .step = 3, .total_steps = 10};
  status.metrics = Json::parse(R"({"step": 3, "loss": 1.5, "router/aux_loss": 1e-05, "memory/max_alloc": 123456789012,
    "grad_norm": null, "entropy": null, "nonfinite": {"grad_norm": "NaN", "entropy": "Infinity"}})");
  return status;
}

TEST(MetricsServer, TextIsWhatPrometheusReads) {
  const std::string text = prometheus_text(status_of_a_run());
  EXPECT_THAT(text, HasSubstr("# TYPE hone_loss gauge\nhone_loss 1.5\n"));
  EXPECT_THAT(text, HasSubstr("\nhone_router_aux_loss 1e-05\n"));
  EXPECT_THAT(text, HasSubstr("\nhone_memory_max_alloc 123456789012\n"));
  EXPECT_THAT(text, HasSubstr("\nhone_grad_norm NaN\n"));
  EXPECT_THAT(text, HasSubstr("\nhone_entropy +Inf\n"));
  EXPECT_THAT(text, HasSubstr("run=\"a \\\"b\\\"\\\\c\",state=\"training\""));
  EXPECT_THAT(text, HasSubstr("\nhone_total_steps 10\n"));
  EXPECT_THAT(text, Not(HasSubstr("nonfinite")));
}

TEST(MetricsServer, TwoNamesThatBecomeOneAreWrittenOnce) {
  ServedStatus status;
  status.metrics = Json::parse(R"({"loss/a b": 1, "loss/a_b": 2})");
  const std::string text = prometheus_text(status);
  EXPECT_THAT(text, HasSubstr("\nhone_loss_a_b 1\n"));
  EXPECT_THAT(text, Not(HasSubstr("\nhone_loss_a_b 2\n")));
}

TEST(MetricsServer, ServesWhatWasPublishedLast) {
  MetricsServer server("127.0.0.1", 0);
  server.publish({});
  server.publish(status_of_a_run());
  httplib::Client client("127.0.0.1", server.port());
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->body, prometheus_text(status_of_a_run()));
  EXPECT_THAT(metrics->get_header_value("Content-Type"), HasSubstr("version=0.0.4"));
  const auto status = client.Get("/status");
  ASSERT_TRUE(status);
  EXPECT_EQ(Json::parse(status->body)["metrics"]["loss"], 1.5);
  EXPECT_EQ(Json::parse(status->body)["total_steps"], 10);
  EXPECT_EQ(client.Get("/health")->status, 200);
  EXPECT_EQ(client.Get("/else")->status, 404);
  EXPECT_EQ(client.Post("/status", "{}", "application/json")->status, 404);
}

TEST(MetricsServer, SlowClientsKeepNobodyWaiting) {
  std::list<Stranger> strangers;
  auto server = std::make_unique<MetricsServer>("127.0.0.1", 0);
  server->publish(status_of_a_run());
  // More connections than allowed; each has started a request that never ends.
  for (size_t i = 0; i < 2 * HttpLimits().clients; ++i) {
    EXPECT_TRUE(strangers.emplace_back(server->port()).say("GET /metrics HTTP/1.1\r\nX: "));
  }
  httplib::Client client("127.0.0.1", server->port());
  const auto metrics = client.Get("/metrics");
  ASSERT_TRUE(metrics);
  EXPECT_EQ(metrics->body, prometheus_text(status_of_a_run()));
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

TEST(MetricsServer, AHeadThatDoesNotEndIsCutOff) {
  const MetricsServer server("127.0.0.1", 0);
  for (const std::string begin : {"GET /", "GET / HTTP/1.1\r\nX: "}) {
    const Stranger stranger(server.port());
    const std::string piece(64 << 10, 'a');
    EXPECT_TRUE(stranger.say(begin));
    size_t sent = 0;
    std::string answer(64, '\0');
    // The server discards input after the answer, until the connection's time limit.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (stranger.say(piece) && std::chrono::steady_clock::now() < end) {
      if (sent == 0) {
        EXPECT_GT(::recv(stranger.socket, answer.data(), answer.size(), 0), 0);
        EXPECT_THAT(answer, testing::StartsWith("HTTP/1.1 431 "));
      }
      sent += piece.size();
    }
    EXPECT_LT(std::chrono::steady_clock::now(), end) << "it is still listened to";
  }
}

TEST(MetricsServer, WhatIsNotARequestIsRefused) {
  const MetricsServer server("127.0.0.1", 0);
  const auto answer_to = [&](const std::string& text) {
    const Stranger stranger(server.port());
    EXPECT_TRUE(stranger.say(text));
    std::string answer(4096, '\0');
    answer.resize(static_cast<size_t>(std::max<ssize_t>(0, ::recv(stranger.socket, answer.data(), answer.size(), 0))));
    return answer;
  };
  EXPECT_THAT(answer_to("\r\n\r\n"), testing::StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer_to("GET /health\r\n\r\n"), testing::StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(answer_to("GET /health?x=1 HTTP/1.0\r\n\r\n"), testing::EndsWith("\r\n\r\nok\n"));
  EXPECT_THAT(answer_to("HEAD /health HTTP/1.0\r\n\r\n"),
              testing::EndsWith("Content-Length: 3\r\nConnection: close\r\n\r\n"));
}

TEST(MetricsServer, APortThatIsTakenIsAnError) {
  const MetricsServer first("127.0.0.1", 0);
  EXPECT_THROW(MetricsServer("127.0.0.1", first.port()), std::system_error);
}

TEST(MetricsServer, LeavesSigpipeToTheProgram) {
  struct sigaction before {
  }, after{};
  sigaction(SIGPIPE, nullptr, &before);
  const MetricsServer server("127.0.0.1", 0);
  sigaction(SIGPIPE, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

}  // namespace
}  // namespace hone
