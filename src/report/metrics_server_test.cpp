#include "report/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>

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
