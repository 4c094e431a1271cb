#include "report/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hone {
namespace {

std::vector<std::string> names(const std::vector<Metric>& metrics) {
  std::vector<std::string> result;
  for (const auto& metric : metrics) result.push_back(metric.name);
  return result;
}

TEST(Metrics, AFullStepHasTheNamesThatUsersPlot) {
  StepMetrics m;
  for (auto* value :
       {&m.mean_token_accuracy, &m.entropy, &m.mfu, &m.max_alloc, &m.host_rss, &m.eta, &m.gpu_utilization, &m.gpu_power,
        &m.gpu_temperature, &m.router_aux_loss, &m.router_z_loss, &m.router_load_max_over_mean, &m.router_entropy,
        &m.router_dead_experts, &m.router_dropped_tokens, &m.packing_efficiency, &m.dropped_samples}) {
    *value = 1.0;
  }
  m.dataset_loss = {{"chat", 1.5}};
  EXPECT_THAT(
      names(metric_list(m)),
      testing::ElementsAre("step", "epoch", "loss", "loss_with_aux", "grad_norm", "learning_rate", "num_tokens",
                           "num_supervised_tokens", "tokens_per_second", "samples_per_second", "step_time",
                           "mean_token_accuracy", "entropy", "mfu", "memory/max_alloc", "memory/host_rss",
                           "gpu/utilization", "gpu/power", "gpu/temperature", "eta", "router/aux_loss", "router/z_loss",
                           "router/load_max_over_mean", "router/entropy", "router/dead_experts",
                           "router/dropped_tokens", "data/packing_efficiency", "data/dropped_samples", "loss/chat"));
}

TEST(Metrics, WhatWasNotMeasuredIsNotWritten) {
  for (const auto& name : names(metric_list(StepMetrics{}))) {
    EXPECT_EQ(name.rfind("router/", 0), std::string::npos) << name;
    EXPECT_EQ(name.rfind("memory/", 0), std::string::npos) << name;
  }
}

TEST(Metrics, AnEvaluationHasItsOwnNames) {
  EvalMetrics m;
  m.eval_mean_token_accuracy = 0.5;
  EXPECT_THAT(names(metric_list(m)),
              testing::ElementsAre("step", "epoch", "eval_loss", "eval_perplexity", "eval_mean_token_accuracy"));
}

}  // namespace
}  // namespace hone
