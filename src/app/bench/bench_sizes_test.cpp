#include "app/bench/bench_sizes.h"

#include <gtest/gtest.h>

#include <set>

#include "app/bench/bench_model.h"
#include "core/cpu/thread_pool.h"

namespace hone {
namespace {

TEST(OpBenches, EveryOneHasCasesInSomeModelAndNoModelHasARowTwice) {
  std::set<std::string_view> with_cases;
  for (const std::string& model : bench_model_names()) {
    const DecoderConfig config = read_decoder_config(bench_model(model, 0));
    for (const bool decode : {false, true}) {
      BenchSizes sizes = bench_sizes(config, 64, 32, DType::kBF16, DeviceKind::kCpu);
      sizes.decode = decode;
      OpCases cases(sizes);
      for (const OpBench& bench : op_benches()) {
        cases.op = bench.op;
        bench.add_cases(cases);
      }
      std::set<std::string> names;
      for (const OpCaseMaker& maker : cases.makers) {
        with_cases.insert(maker.op);
        for (const std::string& name : maker.names) EXPECT_TRUE(names.insert(name).second) << model << ": " << name;
      }
    }
  }
  EXPECT_GT(op_benches().size(), 15u);
  for (const OpBench& bench : op_benches()) EXPECT_TRUE(with_cases.contains(bench.op)) << bench.op;
}

TEST(OpBenches, PartsHaveTheNamesThatTheirMakersGive) {
  ThreadPool pool(2);
  Stream stream(Device{}, pool);
  BenchSizes sizes = bench_sizes(read_decoder_config(bench_model("cpu-moe", 0)), 8, 4, DType::kF32, DeviceKind::kCpu);
  sizes.hidden = sizes.vocab = 32;
  sizes.experts.intermediate = 16;
  OpCases cases(sizes);
  for (const OpBench& bench : op_benches()) bench.add_cases(cases);
  for (const OpCaseMaker& maker : cases.makers) {
    if (maker.group == OpGroup::kOptimizer) continue;  // large
    BenchData data(stream, sizes);
    std::vector<std::string> names;
    for (const OpPart& part : maker.make(data).parts) names.push_back(part.name);
    EXPECT_EQ(names, maker.names);
    stream.synchronize();  // what the case has queued works with its memory
  }
}

}  // namespace
}  // namespace hone
