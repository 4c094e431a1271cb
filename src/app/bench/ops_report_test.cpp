#include "app/bench/ops_report.h"

#include <gtest/gtest.h>

#include "core/text/json.h"

namespace hone {
namespace {

OpRow row(const std::string& name, double flops, double bytes, double ms) {
  return {OpPart{.name = name, .shape = "[2, 3]", .span = "", .pass = "", .bytes = bytes, .flops = flops}, 1e-3 * ms,
          ""};
}

/// A machine of 1 TFLOP/s and 100 GB/s: 10 FLOPs a byte.
OpsResult result(std::vector<OpRow> rows) {
  OpsResult result;
  result.tokens = 100;
  result.threads = 4;
  result.experts = 8;
  result.ceilings = {.gemm = 0.5e12, .flops = 1e12, .bytes = 1e11};
  result.rows = std::move(rows);
  return result;
}

TEST(OpsReport, AnOpIsHeldToWhatLimitsIt) {
  // 20 FLOPs a byte need 1 ms of the units, 5 FLOPs a byte 2 ms of memory.
  const OpsResult ops = result({row("dense", 1e9, 5e7, 2), row("thin", 1e9, 2e8, 4), row("copy", 0, 1e8, 2),
                                row("layer", 1e9, 0, 4), row("unknown", 0, 0, 1)});
  const Json json = ops_json(ops)["ops"];
  EXPECT_EQ(json[0]["limit"], "compute");
  EXPECT_NEAR(json[0]["reached"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(json[1]["limit"], "memory");
  EXPECT_NEAR(json[1]["reached"].get<double>(), 0.5, 1e-9);
  EXPECT_NEAR(json[2]["reached"].get<double>(), 0.5, 1e-9);
  EXPECT_EQ(json[3]["limit"], "compute");
  EXPECT_NEAR(json[3]["reached"].get<double>(), 0.25, 1e-9);
  EXPECT_FALSE(json[4].contains("reached"));
  const std::string table = ops_table(ops, false);
  EXPECT_NE(table.find("500 GFLOP/s"), std::string::npos) << table << "5 FLOPs a byte at 100 GB/s";
  EXPECT_NE(table.find("4 threads: 1 TFLOP/s in registers"), std::string::npos) << table;
}

TEST(OpsReport, KernelsAreNamed) {
  OpsResult ops = result({row("attention", 1e9, 5e7, 2), row("copy", 0, 1e8, 2)});
  EXPECT_FALSE(ops_json(ops).contains("tier"));
  ops.threads = 0;
  ops.tier = "sm80";
  ops.shared_memory = size_t{99} << 10;
  ops.rows[0].kernels = "attention: general forward (slow)";
  const std::string table = ops_table(ops, false);
  EXPECT_NE(table.find("general forward (slow)"), std::string::npos) << table;
  EXPECT_NE(table.find("tier sm80 and 99 KB of shared memory"), std::string::npos) << table;
  EXPECT_EQ(ops_json(ops)["tier"], "sm80");
  EXPECT_EQ(ops_json(ops)["shared_memory"], 99 << 10);
  const Json json = ops_json(ops)["ops"];
  EXPECT_EQ(json[0]["kernels"], "attention: general forward (slow)");
  EXPECT_FALSE(json[1].contains("kernels"));
}

TEST(OpsReport, ASweepOverThreadsShowsEfficiency) {
  OpsResult one = result({row("dense", 1e9, 5e7, 8)}), four = result({row("dense", 1e9, 5e7, 2.5)});
  one.threads = 1;
  const std::string table = sweep_table({one, four}, SweepAxis::kThreads, false);
  EXPECT_NE(table.find("1 thread  "), std::string::npos) << table;
  EXPECT_NE(table.find("2.500 ( 80 %)"), std::string::npos) << table << "8 / (4 × 2.5)";
}

TEST(OpsReport, ASweepOverTokensShowsWhatATokenCosts) {
  OpsResult few = result({row("dense", 1e9, 5e7, 1)}), many = result({row("dense", 1e9, 5e7, 6)});
  many.tokens = 400;
  many.rows.push_back(row("attention", 0, 0, 1));
  few.rows.push_back(row("attention", 0, 0, 1));
  many.rows.back().missing = "did not run";
  const std::string table = sweep_table({few, many}, SweepAxis::kTokens, false);
  EXPECT_NE(table.find("15.000 (1.50 ×)"), std::string::npos) << table;
  EXPECT_NE(table.find("not there"), std::string::npos) << table;
}

TEST(OpsReport, ASweepOverExpertsShowsTime) {
  const std::string table =
      sweep_table({result({row("moe", 1e9, 5e7, 4)}), result({row("moe", 1e9, 5e7, 5)})}, SweepAxis::kExperts, false);
  EXPECT_NE(table.find("5.000 (1.25 ×)"), std::string::npos) << table;
}

}  // namespace
}  // namespace hone
