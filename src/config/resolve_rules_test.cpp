#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_testing.h"
#include "config/resolve_rules.h"
#include "core/text/json.h"

namespace hone {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

struct Batch {
  int64_t micro, accumulation, global;
  bool operator==(const Batch&) const = default;
};

Batch batch_of(const std::string& yaml) {
  const RunConfig::Schedule s = resolved(yaml).run.schedule;
  return {s.per_device_train_batch_size, s.gradient_accumulation_steps, s.global_batch_size};
}

TEST(Rules, PackedWeightsAreForAdapters) {
  for (const char* frozen : {"", "freeze_parameters: ['*.experts.*']\n"}) {
    EXPECT_THAT(refusal(std::string("finetuning_type: full\nbase_weight_dtype: nf4\n") + frozen),
                HasSubstr("which is for frozen weights, but finetuning_type is full"))
        << frozen;
  }
}

TEST(Defaults, AreTheOnesOfTheSpecification) {
  const ResolvedConfig config = resolved("");
  const RunConfig& run = config.run;
  EXPECT_EQ(run.optim.weight_decay, 0);
  EXPECT_EQ(run.optim.adam_beta2, 0.999);
  EXPECT_EQ(run.optim.adam_epsilon, 1e-8);
  EXPECT_EQ(run.optim.max_grad_norm, 1);
  EXPECT_EQ(run.schedule.num_train_epochs, 3);
  EXPECT_EQ(name_of(run.schedule.lr_scheduler_type), "cosine");
  EXPECT_EQ(run.schedule.warmup_ratio, 0.03);
  EXPECT_EQ(run.schedule.learning_rate, 1e-5);
  EXPECT_TRUE(run.data.packing);
  EXPECT_EQ(name_of(run.data.train_on), "assistant");
  EXPECT_EQ(run.machine.seed, 42);
  EXPECT_EQ(run.checkpoint.save_total_limit, 3);
  EXPECT_EQ(run.checkpoint.save_steps, std::nullopt);
  EXPECT_EQ(run.model.router_aux_loss_coef, std::nullopt);
  EXPECT_EQ(name_of(run.eval.eval_strategy), "no");
  EXPECT_FALSE(run.model.freeze_router);
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(Defaults, OfLoraFollowTheRank) {
  const RunConfig run = resolved("finetuning_type: lora\nlora_r: 8").run;
  EXPECT_EQ(run.schedule.learning_rate, 1e-4);
  EXPECT_EQ(run.lora.alpha, 16);
  EXPECT_EQ(run.lora.dropout, 0);
  EXPECT_TRUE(run.model.freeze_router);
  EXPECT_THAT(run.lora.target_modules, ElementsAre("all-linear"));
  EXPECT_THAT(resolved("lora: true\ntarget_parameters: [x]").run.lora.target_modules, IsEmpty());
}

TEST(Defaults, InWhichToolsDisagreeArePrintedUnlessStated) {
  const std::vector<std::string> lines = default_lines(resolved("lora_r: 8\nweight_decay: 0.1"));
  EXPECT_THAT(lines, Contains("adam_beta2 0.999"));
  EXPECT_THAT(lines, Not(Contains(StartsWith("max_length")))) << "the model says it";
  EXPECT_THAT(lines, Not(Contains(StartsWith("save_steps")))) << "the data say it";
  EXPECT_THAT(lines, Contains("lora_alpha 16.0"));
  EXPECT_THAT(lines, Contains("lr_scheduler_type cosine"));
  EXPECT_THAT(lines, Not(Contains(StartsWith("weight_decay"))));
  EXPECT_THAT(default_lines(resolved("")), Not(Contains(StartsWith("lora"))));
}

TEST(Method, LoraKeysMeanLora) {
  const ResolvedConfig config = resolved("lora_r: 8");
  EXPECT_EQ(name_of(config.run.model.finetuning_type), "lora");
  EXPECT_TRUE(has_note(config, "finetuning_type is lora, since lora_r is stated (run.yaml:1)"));
  const ResolvedConfig full = resolved("lora_r: 8\nfinetuning_type: full");
  EXPECT_EQ(name_of(full.run.model.finetuning_type), "full");
  EXPECT_TRUE(has_note(full, "lora_r has no effect: finetuning_type is full (run.yaml:1)"));
}

TEST(Method, AnAdapterThatIsContinuedSaysItsOwnRank) {
  const RunConfig run = resolved("adapter_name_or_path: a").run;
  EXPECT_EQ(name_of(run.model.finetuning_type), "lora");
  EXPECT_EQ(run.lora.r, std::nullopt);
  EXPECT_EQ(run.lora.alpha, std::nullopt);
  EXPECT_THAT(refusal("adapter_name_or_path: a\nfinetuning_type: full"), HasSubstr("continues an adapter"));
}

TEST(Router, TrainedUnderLoraIsSavedWhole) {
  EXPECT_THAT(names_of(resolved("lora: true\nfreeze_router: false").run.lora.modules_to_save), ElementsAre("router"));
  EXPECT_FALSE(resolved("lora: true\nmodules_to_save: [gate]").run.model.freeze_router);
  EXPECT_THAT(refusal("lora: true\nmodules_to_save: [gate]\nfreeze_router: true"),
              HasSubstr("but freeze_router is true"));
  EXPECT_TRUE(resolved("freeze_router: true").run.model.freeze_router);
}

TEST(BatchNumbers, AnyTwoFixTheThird) {
  EXPECT_EQ(batch_of(""), (Batch{1, 1, 1}));
  EXPECT_EQ(batch_of("per_device_train_batch_size: 4"), (Batch{4, 1, 4}));
  EXPECT_EQ(batch_of("global_batch_size: 6"), (Batch{1, 6, 6}));
  EXPECT_EQ(batch_of("gradient_accumulation_steps: 3"), (Batch{1, 3, 3}));
  EXPECT_EQ(batch_of("micro_batch_size: 2\nglobal_batch_size: 6"), (Batch{2, 3, 6}));
  EXPECT_EQ(batch_of("per_device_train_batch_size: 2\ngradient_accumulation_steps: 4"), (Batch{2, 4, 8}));
  EXPECT_EQ(batch_of("gradient_accumulation_steps: 4\ntotal_batch_size: 8"), (Batch{2, 4, 8}));
  EXPECT_EQ(batch_of("per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nglobal_batch_size: 8"),
            (Batch{2, 4, 8}));
  EXPECT_EQ(batch_of("max_length: 1024\ntokens_per_step: 8192\nper_device_train_batch_size: 2"), (Batch{2, 4, 8}));
  EXPECT_EQ(batch_of("gradient_accumulation_steps: auto\nglobal_batch_size: 6"), (Batch{1, 6, 6}));
  EXPECT_EQ(batch_of("gradient_accumulation_steps_auto: true\nglobal_batch_size: 6"), (Batch{1, 6, 6}));
}

TEST(BatchNumbers, AMicroBatchIsBounded) {
  EXPECT_EQ(batch_of("max_length: 16777216\nper_device_train_batch_size: 64"), (Batch{64, 1, 64}));
  EXPECT_THAT(refusal("max_length: 16777216\nper_device_train_batch_size: 65"),
              StartsWith("per_device_train_batch_size 65 × max_length 16777216 is more than a micro-batch can be"));
  EXPECT_THAT(refusal("per_device_train_batch_size: 1000000"), HasSubstr("gradient_accumulation_steps"));
  EXPECT_THAT(refusal("per_device_eval_batch_size: 1000000"), StartsWith("per_device_eval_batch_size"));
}

TEST(BatchNumbers, ThatDisagreeAreAnError) {
  EXPECT_EQ(refusal("per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nglobal_batch_size: 9"),
            "per_device_train_batch_size 2 × gradient_accumulation_steps 4 is 8, but global_batch_size is 9 | "
            "run.yaml:3 | leave one of the three out: two fix the third");
  EXPECT_THAT(refusal("per_device_train_batch_size: 2\nglobal_batch_size: 9"),
              StartsWith("global_batch_size 9 is not a multiple of per_device_train_batch_size 2 | run.yaml:2"));
  EXPECT_THAT(refusal("gradient_accumulation_steps: 2\nglobal_batch_size: 9"), HasSubstr("not a multiple"));
  EXPECT_THAT(refusal("tokens_per_step: 100"), HasSubstr("tokens_per_step needs max_length"));
  EXPECT_THAT(refusal("tokens_per_step: 100\nmax_length: 64"), HasSubstr("not a multiple of max_length 64"));
  EXPECT_THAT(refusal("tokens_per_step: 128\nmax_length: 64\nglobal_batch_size: 3"),
              HasSubstr("means a global_batch_size of 2, but it is 3 (run.yaml:3)"));
  EXPECT_THAT(refusal("per_device_train_batch_size: 3000000000"), HasSubstr("expected an integer in [1, 1000000000]"));
}

TEST(Precision, AdamwOf8BitsHasMomentsOf8Bits) {
  for (const char* yaml : {"optim: adamw_8bit", "optim: adamw_bnb_8bit", "optim: paged_adamw_8bit"}) {
    const RunConfig::Model model = resolved(yaml).run.model;
    EXPECT_EQ(name_of(model.opt_m_dtype), "int8") << yaml;
    EXPECT_EQ(name_of(model.opt_v_dtype), "int8") << yaml;
  }
  const RunConfig::Model mixed = resolved("opt_m_dtype: int8\nopt_v_dtype: bf16\ngrad_dtype: bf16").run.model;
  EXPECT_EQ(name_of(mixed.opt_v_dtype), "bfloat16");
  EXPECT_EQ(name_of(mixed.grad_dtype), "bfloat16");
  EXPECT_THAT(refusal("optim: adamw_8bit\nopt_v_dtype: float32"), HasSubstr("opt_v_dtype is float32"));
}

TEST(OptimArgs, AreThoseOfTheOptimizer) {
  EXPECT_EQ(resolved("optim: sgd\noptim_args: {momentum: 0.9}").run.optim.args, (Json{{"momentum", 0.9}}));
  EXPECT_EQ(resolved("optim: sgd\noptim_args: momentum=0.9, nesterov=true").run.optim.args,
            (Json{{"momentum", 0.9}, {"nesterov", true}}));
  EXPECT_EQ(name_of(resolved("optim: paged_lion_32bit").run.optim.name), "lion");
  EXPECT_EQ(resolved("optim: lion").run.optim.adam_beta2, 0.99);
  EXPECT_EQ(resolved("optim: lion\nadam_beta2: 0.999").run.optim.adam_beta2, 0.999);
  EXPECT_EQ(name_of(resolved("optim: adafactor\noptim_args: {beta1: null, decay_rate: -0.7}").run.optim.name),
            "adafactor");
  EXPECT_EQ(refusal("optim: sgd\noptim_args: {momentun: 0.9}"),
            "optim sgd takes no argument 'momentun'. Did you mean 'momentum'? | run.yaml:2 | ");
  EXPECT_EQ(refusal("optim_args: a=1"), "optim adamw takes no argument 'a'. | run.yaml:1 | leave optim_args out");
  EXPECT_THAT(refusal("optim: sgd\noptim_args: {momentum: 1}"),
              HasSubstr("momentum is 1: expected a number in [0, 1)"));
  EXPECT_THAT(refusal("optim: sgd\noptim_args: {momentum: 0.99999999}"), HasSubstr("in [0, 1), also in float32"));
  EXPECT_THAT(refusal("optim: muon\noptim_args: {eps: 1e-50}"), HasSubstr("above 0, also in float32"));
  EXPECT_THAT(refusal("optim: sgd\noptim_args: {momentum: x}"), HasSubstr("momentum is \"x\": expected a number"));
  EXPECT_THAT(refusal("optim: sgd\noptim_args: {nesterov: true}"), HasSubstr("expected a momentum above 0 with it"));
  EXPECT_THAT(refusal("optim: sgd\noptim_args: {dampening: 0.5}"), HasSubstr("known, not in this version"));
  EXPECT_THAT(refusal("optim: adafactor\noptim_args: {warmup_init: true}"), HasSubstr("relative_step with it"));
  EXPECT_THAT(refusal("optim: adafactor\nlearning_rate: 1e-3\noptim_args: relative_step=true"),
              HasSubstr("makes the learning rate itself"));
  EXPECT_EQ(refusal("optim: muon\noptim_args: {momentum: 0.9, nesterov: false, ns_steps: 6, eps: 1e-7, "
                    "adjust_lr_fn: match_rms_adamw}"),
            "");
  EXPECT_EQ(name_of(resolved("optimizer: muon\noptim_args: adjust_lr_fn=original").run.optim.name), "muon");
  EXPECT_THAT(refusal("optim: muon\noptim_args: {adjust_lr_fn: rms_norm}"),
              HasSubstr("adjust_lr_fn is \"rms_norm\": expected original or match_rms_adamw"));
  EXPECT_THAT(refusal("optim: muon\noptim_args: {ns_steps: 2.5}"), HasSubstr("expected a whole number from 1 to 99"));
  EXPECT_THAT(refusal("optim: muon\noptim_args: {ns_coefficients: 1}"), HasSubstr("takes no argument"));
  EXPECT_EQ(refusal("optim: muon\ndevice: cuda"),
            "optim muon runs only on the CPU in this version, but the device is a GPU | run.yaml:1 | choose the device "
            "cpu, or another optim");
  EXPECT_THAT(refusal("optim: lion_8bit"), HasSubstr("known, not in this version"));
}

TEST(OptimArgs, StateThatAnOptimizerDoesNotKeepHasNoFormat) {
  EXPECT_THAT(refusal("optim: lion\nopt_v_dtype: bfloat16"), HasSubstr("keeps no second moments"));
  EXPECT_THAT(refusal("optim: adafactor\nopt_v_dtype: int8"), HasSubstr("factors of rows and columns"));
  EXPECT_THAT(refusal("optim: lion\nopt_m_dtype: int8"), HasSubstr("float32 or bfloat16"));
  EXPECT_THAT(refusal("optim: sgd\nopt_m_dtype: bfloat16"), HasSubstr("keeps no first moments"));
  EXPECT_EQ(refusal("optim: sgd\nopt_m_dtype: bfloat16\noptim_args: momentum=0.9"), "");
  EXPECT_THAT(refusal("optim: muon\nopt_m_dtype: int8"), HasSubstr("optim muon keeps first moments in float32"));
  EXPECT_EQ(refusal("optim: muon\nopt_m_dtype: bfloat16\nopt_v_dtype: int8"), "");
  EXPECT_FALSE(has_note(resolved("optim: muon\nadam_beta1: 0.8\nadam_epsilon: 1e-7"), "has no effect"));
  EXPECT_TRUE(has_note(resolved("optim: sgd\nadam_beta1: 0.8"), "adam_beta1 has no effect: optim is sgd (run.yaml:2)"));
}

TEST(Precision, OnlyBfloat16WeightsGoWithoutAMaster) {
  EXPECT_EQ(name_of(resolved("pure_bf16: true").run.model.master_dtype), "bfloat16");
  EXPECT_EQ(name_of(resolved("pure_bf16: false").run.model.master_dtype), "float32");
  EXPECT_THAT(refusal("dtype: float32\nmaster_dtype: bfloat16"), HasSubstr("float32 weights need no copy"));
}

TEST(Precision, ExpertsOf8BitsAreFrozenAndOnACpu) {
  const auto held = [](const std::string& yaml) { return resolved(yaml).run.model.expert_weight_dtype.name(); };
  EXPECT_EQ(held("lora_r: 8"), "auto");
  EXPECT_EQ(held("expert_weight_dtype: int8\nlora_r: 8"), "int8");
  EXPECT_EQ(held("kt_backend: AMXINT8\nkt_expert_weight_format: int8\nlora_r: 8"), "int8");
  EXPECT_EQ(held("ACCELERATE_KT_BACKEND: AMXBF16"), "bfloat16");
  EXPECT_EQ(
      refusal("expert_weight_dtype: int8"),
      "experts of 8 bits are frozen, but finetuning_type is full | run.yaml:1 | write finetuning_type: lora, which "
      "trains adapters beside them, or leave expert_weight_dtype out");
  EXPECT_EQ(refusal("lora_r: 8\ndevice: cuda:1\nexpert_weight_dtype: int8"),
            "experts of 8 bits are computed by a CPU, but the device is a GPU | run.yaml:3 | write experts_device: "
            "cpu, which computes them on the CPU beside the GPU; or leave expert_weight_dtype out; base_weight_dtype: "
            "int8 holds "
            "them in 8 bits on a GPU");
  EXPECT_EQ(held("lora_r: 8\ndevice: cuda:1\nexpert_weight_dtype: int8\nexperts_device: cpu"), "int8");
  EXPECT_THAT(refusal("dtype: float32\nexpert_weight_dtype: bf16"), HasSubstr("but dtype is float32"));
  EXPECT_THAT(refusal("lora_r: 8\nkt_backend: AMXINT8\nkt_expert_weight_format: bf16"), HasSubstr("stated twice"));
  for (const char* later : {"kt_backend: AMXINT4", "kt_backend: AMXINT4_SkipLoRA"}) {
    EXPECT_THAT(refusal(later), HasSubstr("known, not in this version")) << later;
    EXPECT_THAT(refusal(later), HasSubstr("a scale for each 32 or 128 of a row where AMXINT4 has one")) << later;
  }
  EXPECT_EQ(held("kt_backend: AMXINT4_KGroup\nlora_r: 8"), "int4");
  EXPECT_EQ(held("kt_expert_weight_format: fp8\nlora_r: 8"), "fp8");
  EXPECT_EQ(held("expert_weight_dtype: int4_128\nlora_r: 8\ndevice: cuda:1"), "int4_128");
  EXPECT_EQ(resolved("lora_r: 8\nkt_backend: AMXINT4_KGroup_SkipLoRA").run.lora.exclude_modules.size(), 1u);
  EXPECT_THAT(refusal("expert_weight_dtype: int4"),
              HasSubstr("experts in int4 are frozen, but finetuning_type is full"));
  EXPECT_THAT(refusal("expert_weight_dtype: int7"), HasSubstr("int7"));
}

TEST(ExpertsDevice, IsTheCpuWithKTransformersNames) {
  const auto device = [](const std::string& yaml) { return name_of(resolved(yaml).run.machine.experts_device); };
  EXPECT_EQ(device(""), "gpu");
  EXPECT_EQ(device("use_kt: true"), "cpu");
  EXPECT_EQ(device("use_kt: false"), "gpu");
  EXPECT_EQ(device("experts_device: auto\nkt_num_gpu_experts: 0\nkt_tp_enabled: true"), "auto");
  EXPECT_EQ(*resolved("use_kt: true\nkt_num_threads: 8").run.machine.threads, 8);
  const RunConfig skips = resolved("use_kt: true\nlora_r: 8\nkt_backend: AMXINT8_SkipLoRA").run;
  EXPECT_EQ(skips.model.expert_weight_dtype.name(), "int8");
  EXPECT_THAT(skips.lora.exclude_modules, ::testing::ElementsAre("all-experts"));
  EXPECT_THAT(resolved("lora_r: 8\nkt_backend: AMXINT8").run.lora.exclude_modules, ::testing::IsEmpty());
  EXPECT_EQ(resolved("ACCELERATE_KT_BACKEND: AMXBF16_SkipLoRA\nlora_r: 8").run.model.expert_weight_dtype.name(),
            "bfloat16");
  EXPECT_THAT(refusal("kt_num_gpu_experts: 4"),
              HasSubstr("cpu_expert_layers leaves the experts of whole layers on the GPU"));
  EXPECT_THAT(refusal("kt_config: kt.yaml"), HasSubstr("write experts_device: cpu"));
}

TEST(ExpertsDevice, KTransformersKeysMeanNothingWhereItIsOff) {
  const std::string keys =
      "\nlora_r: 8\nkt_num_threads: 3\nkt_backend: AMXINT8_SkipLoRA\nkt_num_gpu_experts: 4\nkt_tp_enabled: true";
  const ResolvedConfig off = resolved("use_kt: false" + keys);
  EXPECT_FALSE(off.run.machine.threads);
  EXPECT_EQ(off.run.model.expert_weight_dtype.name(), "auto");
  EXPECT_THAT(off.run.lora.exclude_modules, ::testing::IsEmpty());
  EXPECT_THAT(off.notes,
              ::testing::Contains("kt_num_threads has no effect: use_kt is false at run.yaml:1 (run.yaml:3)"));
  EXPECT_THAT(off.notes, ::testing::Contains("kt_backend has no effect: use_kt is false at run.yaml:1 (run.yaml:4)"));
  EXPECT_EQ(resolved("use_kt: false\nthreads: 2").run.machine.threads, 2);
  EXPECT_EQ(resolved("use_kt: null\nkt_num_threads: 3").run.machine.threads, 3);
  // The command line has the last word on use_kt, too.
  const std::string on = "use_kt: true\nkt_num_threads: 3";
  EXPECT_EQ(resolved(on).run.machine.threads, 3);
  EXPECT_FALSE(resolved(on, {"use_kt=false"}).run.machine.threads);
  EXPECT_EQ(resolved("use_kt: false\nkt_num_threads: 3", {"use_kt=true"}).run.machine.threads, 3);
}

TEST(ExpertsDevice, RefusesWhatItDoesNotGoWith) {
  for (const std::string where : {"cpu", "auto"}) {
    const std::string on = "experts_device: " + where + "\n";
    EXPECT_THAT(refusal(on + "optimizer_in_backward: true\nmax_grad_norm: 0"), HasSubstr("leave one of the two out"));
    EXPECT_THAT(refusal(on + "cpu_offload: [optimizer, experts]"),
                HasSubstr(where == "cpu" ? "leave experts out there" : "leave experts and params out there"));
    EXPECT_THAT(refusal(on + "cuda_graphs: true"), HasSubstr("leave cuda_graphs out"));
  }
  EXPECT_EQ(
      name_of(
          resolved("experts_device: cpu\ncpu_offload: [optimizer, params, activations]").run.machine.experts_device),
      "cpu");
  const RunConfig mixed = resolved("experts_device: cpu\nn_cpu_moe: 3\ncpu_offload: [experts]").run;
  EXPECT_EQ(mixed.machine.cpu_expert_layers, 3);
  EXPECT_THAT(refusal("cpu_expert_layers: 3"), HasSubstr("write experts_device: cpu beside it"));
  EXPECT_THAT(refusal("offload_expert_layers: 3"), HasSubstr("add experts to cpu_offload"));
  EXPECT_THAT(refusal("experts_device: host"), HasSubstr("gpu"));
}

TEST(ExpertsDevice, TakesRanksOfHostsThatHaveAsMany) {
  const auto refused = [](const std::function<void(RunConfig::Machine&)>& change) -> std::string {
    RunConfig run;
    run.model.finetuning_type = FinetuningType::kLora;
    run.machine.experts_device = ExpertsOn::kCpu;
    run.machine.ranks = 4;
    run.machine.ranks_of_host = 2;
    change(run.machine);
    const std::optional<Refusal> refusal = find_refusal(run);
    return refusal ? refusal->why + "; " + refusal->instead : "";
  };
  EXPECT_EQ(refused([](RunConfig::Machine&) {}), "");
  for (const ZeroStage stage : {ZeroStage::kState, ZeroStage::kGradients, ZeroStage::kValues}) {
    EXPECT_EQ(refused([&](auto& machine) { machine.zero_stage = stage; }), "");
  }
  EXPECT_THAT(refused([](auto& machine) { machine.ranks_of_host = 0; }),
              HasSubstr("start the same number on each host"));
  EXPECT_EQ(refused([](auto& machine) { machine.experts_device = ExpertsOn::kAuto; }), "");
  EXPECT_THAT(refused([](auto& machine) { machine.expert_parallel_size = 2; }), HasSubstr("leave one of the two out"));
}

TEST(Precision, TheOptimizerInBackwardNeedsOneMicroBatchAndNoClipping) {
  const std::string on = "optimizer_in_backward: true\n";
  EXPECT_TRUE(resolved(on + "max_grad_norm: 0").run.optim.optimizer_in_backward);
  EXPECT_THAT(refusal(on), HasSubstr("write max_grad_norm: 0"));
  EXPECT_THAT(refusal(on + "max_grad_norm: 0\ngradient_accumulation_steps: 2"), HasSubstr("wait for 2 micro-batches"));
  EXPECT_THAT(refusal(on + "max_grad_norm: 0\nglobal_batch_size: 4"), HasSubstr("wait for 4 micro-batches"));
  EXPECT_THAT(refusal(on + "max_grad_norm: 0\nnan_policy: skip"), HasSubstr("nan_policy: stop"));
}

TEST(WarmUp, IsStepsOrARatio) {
  EXPECT_EQ(resolved("warmup_steps: 0.1").run.schedule.warmup_ratio, 0.1);
  EXPECT_EQ(resolved("warmup_steps: 0.1").run.schedule.warmup_steps, std::nullopt);
  EXPECT_EQ(resolved("warmup: 100").run.schedule.warmup_steps, 100);
  EXPECT_EQ(resolved("warmup: 100").run.schedule.warmup_ratio, 0);
  EXPECT_EQ(resolved("warmup_steps: 0").run.schedule.warmup_ratio, 0);
  EXPECT_EQ(resolved("warmup_steps: 0\nwarmup_ratio: 0.1").run.schedule.warmup_ratio, 0.1);
  EXPECT_THAT(refusal("warmup_steps: 10\nwarmup_ratio: 0.1"), HasSubstr("both state the warm-up"));
  EXPECT_THAT(refusal("warmup_steps: 0.1\nwarmup_ratio: 0.2"), HasSubstr("stated twice"));
  EXPECT_THAT(refusal("warmup_steps: 1.5"), HasSubstr("expected an integer"));
  EXPECT_EQ(resolved("lr_scheduler_type: constant").run.schedule.warmup_ratio, 0);
  EXPECT_THAT(refusal("lr_scheduler_type: constant\nwarmup_steps: 5"), HasSubstr("constant has no warm-up"));
}

TEST(LearningRate, HasOneFloor) {
  EXPECT_THAT(refusal("min_lr: 1e-6\nmin_lr_ratio: 0.1"), HasSubstr("both state the end of the schedule"));
  EXPECT_THAT(refusal("lr: 1e-5\nmin_lr: 1e-4"), HasSubstr("above learning_rate"));
  EXPECT_THAT(refusal("lr_scheduler_type: cosine_with_min_lr"), HasSubstr("needs min_lr or min_lr_ratio"));
  EXPECT_EQ(resolved("lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6}").run.schedule.min_lr,
            1e-6);
}

TEST(Template, IsTextOrAFile) {
  EXPECT_EQ(resolved("chat_template: '{{ messages }}'").run.data.chat_template, "{{ messages }}");
  EXPECT_EQ(resolved("chat_template: t/chat.jinja").run.data.chat_template_file, "t/chat.jinja");
  EXPECT_EQ(resolved("chat_template: tokenizer_default").run.data.chat_template, "");
  EXPECT_THAT(refusal("chat_template: '{{ a }}'\nchat_template_file: f"), HasSubstr("both state the template"));
}

TEST(Template, IsANameThatIsBuiltIn) {
  EXPECT_EQ(resolved("chat_template: chatml").run.data.chat_template, "chatml");
  EXPECT_EQ(resolved("template: Llama3").run.data.chat_template, "Llama3");
  EXPECT_THAT(refusal("chat_template: chatlm"),
              AllOf(HasSubstr("not a template that is built in"), HasSubstr("Did you mean 'chatml'"),
                    HasSubstr("chatml, llama3, llama2, mistral")));
}

TEST(Evaluation, NeedsSomethingToEvaluateOn) {
  EXPECT_EQ(name_of(resolved("val_split: 0.1").run.eval.eval_strategy), "steps");
  EXPECT_EQ(name_of(resolved("eval_dataset: e.jsonl").run.eval.eval_strategy), "steps");
  EXPECT_EQ(name_of(resolved("val_split: 0.1\neval_strategy: no").run.eval.eval_strategy), "no");
  EXPECT_THAT(refusal("eval_strategy: steps"), HasSubstr("there is nothing to evaluate on"));
  EXPECT_THAT(refusal("eval_on_start: true"), HasSubstr("there is nothing to evaluate on"));
  EXPECT_THAT(refusal("val_split: 2.5"), HasSubstr("neither a share below 1 nor a whole number"));
  EXPECT_THAT(refusal("val_split: 2\neval_datasets: e"), HasSubstr("both say what to evaluate on"));
  EXPECT_TRUE(has_note(resolved("eval_steps: 5"), "eval_steps has no effect: eval_strategy is no (run.yaml:1)"));
  EXPECT_EQ(resolved("micro_batch_size: 4").run.eval.per_device_eval_batch_size, 4);
}

TEST(Evaluation, TheBestModelNeedsEvaluationAndCheckpoints) {
  EXPECT_THAT(refusal("load_best_model_at_end: true"), HasSubstr("eval_strategy is no"));
  EXPECT_THAT(refusal("load_best_model_at_end: true\nval_split: 5\nsave_strategy: no"),
              HasSubstr("save_strategy is no"));
  EXPECT_FALSE(resolved("val_split: 5").run.eval.greater_is_better);
  EXPECT_TRUE(resolved("metric_for_best_model: mean_token_accuracy").run.eval.greater_is_better);
}

TEST(Names, FollowTheOutputFolder) {
  EXPECT_EQ(resolved("output_dir: out/a/").run.report.run_name, "a");
  EXPECT_EQ(resolved("output_dir: out/a\nseed: 5").run.machine.data_seed, 5);
  EXPECT_EQ(resolved("output_dir: o\nlogging_dir: l").run.report.logging_dir, "l");
}

}  // namespace
}  // namespace hone
