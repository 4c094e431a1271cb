#include "config/alias_rules.h"
#include "config/presets.h"
#include "config/schema_builder.h"

namespace hone {
namespace {

using Schedule = RunConfig::Schedule;
using Optim = RunConfig::Optim;
using Machine = RunConfig::Machine;
constexpr auto kSchedule = &RunConfig::schedule;
constexpr auto kOptim = &RunConfig::optim;
constexpr auto kRunMachine = &RunConfig::machine;
constexpr double kLargestBatch = 1e9;  // so that the product of two fits 64 bits

std::string ratio_below_one(const ConfigNode& node) {
  double value = 0;
  return parse_number(node.text, value) && value > 0 && value < 1 ? "warmup_ratio" : "";
}

void add_length(GroupBuilder group) {
  group.key("preset", "A named set of defaults (see Presets); whatever is stated wins over it.")
      .field(kSchedule, &Schedule::preset)
      .choices(preset_names())
      .unset({"none"});
  group.key("num_train_epochs", "Passes over the training data; may be a fraction.")
      .field(kSchedule, &Schedule::num_train_epochs)
      .above(0)
      .alias({"num_epochs", "epochs"});
  group.key("max_steps", "Optimizer steps; wins over num_train_epochs. -1 is unset.")
      .field(kSchedule, &Schedule::max_steps)
      .at_least(1)
      .unset({"-1"})
      .alias({"steps", "train_steps", "train_iters"});
  group
      .key("per_device_train_batch_size",
           "Packs (or samples) in a micro-batch: max_length times this is its size in tokens.")
      .field(kSchedule, &Schedule::per_device_train_batch_size)
      .at_least(1)
      .at_most(kLargestBatch)
      .alias({"micro_batch_size"});
  group.key("gradient_accumulation_steps", "Micro-batches in an optimizer step.")
      .field(kSchedule, &Schedule::gradient_accumulation_steps)
      .at_least(1)
      .at_most(kLargestBatch)
      .unset({"auto"})
      .default_note("global_batch_size / per_device_train_batch_size")
      .alias({"grad_accumulation"});
  group.key("global_batch_size", "Packs (or samples) in an optimizer step.")
      .field(kSchedule, &Schedule::global_batch_size)
      .at_least(1)
      .at_most(kLargestBatch)
      .unset({"auto"})
      .default_note("per_device_train_batch_size × gradient_accumulation_steps")
      .alias({"total_batch_size"});
  group.key("tokens_per_step", "global_batch_size × max_length, stated instead of global_batch_size.")
      .field(kSchedule, &Schedule::tokens_per_step)
      .at_least(1);
}

void add_rate(GroupBuilder group) {
  group.key("learning_rate", "Peak learning rate.")
      .field(kSchedule, &Schedule::learning_rate)
      .at_least(0)
      .default_note("1e-5 full, 1e-4 LoRA")
      .alias({"lr"});
  group
      .key("lr_scheduler_type",
           "Shape after warm-up. constant has no warm-up; it and inverse_sqrt have no floor, the others end at min_lr.")
      .field(kSchedule, &Schedule::lr_scheduler_type)
      .spelled({{"wsd", "warmup_stable_decay"}})
      .alias({"lr_scheduler", "lr_decay_style", "lr_schedule"});
  group.key("min_lr", "Learning rate at the end.")
      .field(kSchedule, &Schedule::min_lr)
      .at_least(0)
      .default_note("0; 1e-7 with polynomial")
      .alias({"min_learning_rate", "lr_end"});
  group.key("min_lr_ratio", "The same as a fraction of learning_rate.")
      .field(kSchedule, &Schedule::min_lr_ratio)
      .at_least(0)
      .at_most(1)
      .alias({"cosine_min_lr_ratio", "final_lr_fraction", "min_lr_rate"});
  group.key("warmup_steps", "Optimizer steps of linear warm-up; a number below 1 is a ratio.")
      .field(kSchedule, &Schedule::warmup_steps)
      .at_least(0)
      .redirect(ratio_below_one)
      .default_note("by warmup_ratio")
      .alias({"lr_warmup_iters", "warmup"});
  group.key("warmup_ratio", "Warm-up as a fraction of all optimizer steps, rounded up.")
      .field(kSchedule, &Schedule::warmup_ratio)
      .at_least(0)
      .at_most(1)
      .alias({"lr_warmup_fraction"});
}

void add_shape(GroupBuilder group) {
  group.key("num_cycles", "Waves of cosine (0.5: one fall), falls of cosine_with_restarts.")
      .field(kSchedule, &Schedule::num_cycles)
      .above(0)
      .default_note("0.5 with cosine, 1 with cosine_with_restarts");
  group.key("power", "Of the polynomial schedule; 1 is linear.").field(kSchedule, &Schedule::power).above(0);
  group.key("num_decay_steps", "Steps of warmup_stable_decay's decay; a number below 1 is a share of all steps.")
      .field(kSchedule, &Schedule::num_decay_steps)
      .above(0)
      .alias({"lr_decay_steps", "lr_wsd_decay_iters", "cooldown_steps"});
  group.key("num_stable_steps", "Steps of warmup_stable_decay at the peak.")
      .field(kSchedule, &Schedule::num_stable_steps)
      .at_least(0)
      .default_note("what warm-up and decay leave");
  group.key("decay_type", "Shape of warmup_stable_decay's decay.")
      .field(kSchedule, &Schedule::decay_type)
      .spelled({{"1_sqrt", "1-sqrt"}, {"sqrt", "1-sqrt"}})
      .alias({"lr_wsd_decay_style"});
  group.key("timescale", "Steps after which inverse_sqrt has fallen to 1/√2 of the peak.")
      .field(kSchedule, &Schedule::timescale)
      .at_least(1)
      .default_note("the warm-up, or 10000 without one");
  group.later("warmup_type", KeyType::kString, "Warm-up other than linear.").neutral("linear");
}

void add_optimizer(GroupBuilder group) {
  group
      .key("optim",
           "The optimizer (docs/precision.md). adamw_8bit has moments of int8; muon steps hidden matrices, and adamw "
           "the rest: on a CPU in this version.")
      .field(kOptim, &Optim::name)
      .later({"normuon", "lion_8bit"})
      .spelled({{"adamw_torch", "adamw"},
                {"adamw_torch_fused", "adamw"},
                {"adamw_hf", "adamw"},
                {"paged_adamw", "adamw"},
                {"paged_adamw_32bit", "adamw"},
                {"adamw_bnb_8bit", "adamw_8bit"},
                {"adamw_torch_8bit", "adamw_8bit"},
                {"paged_adamw_8bit", "adamw_8bit"},
                {"lion_32bit", "lion"},
                {"paged_lion", "lion"},
                {"paged_lion_32bit", "lion"},
                {"paged_lion_8bit", "lion_8bit"}})
      .alias({"optimizer"});
  group
      .key("optimizer_in_backward",
           "Step each layer as soon as backward has its gradients. Needs one micro-batch a step and max_grad_norm 0.")
      .field(kOptim, &Optim::optimizer_in_backward);
  group.key("adam_beta1", "Decay of the first moments; of Lion the share of the momentum in a step.")
      .field(kOptim, &Optim::adam_beta1)
      .at_least(0)
      .below(1)
      .alias({"adamw_beta1", "beta1"});
  group.key("adam_beta2", "Decay of the second moments; of Lion of the momentum.")
      .field(kOptim, &Optim::adam_beta2)
      .at_least(0)
      .below(1)
      .default_note("0.999; 0.99 with lion")
      .alias({"adamw_beta2", "beta2"});
  group.key("adam_epsilon", "Added to the root of the second moments.")
      .field(kOptim, &Optim::adam_epsilon)
      .above(0)
      .alias({"adam_eps", "adamw_epsilon", "adamw_eps"});
  group.key("weight_decay", "Weight decay: decoupled, with sgd added to the gradient.")
      .field(kOptim, &Optim::weight_decay)
      .at_least(0);
  group.key("decay_norms_and_biases", "Decay tensors of fewer than two dimensions as well.")
      .field(kOptim, &Optim::decay_norms_and_biases);
  group.key("max_grad_norm", "Gradients are scaled down to this global norm; 0 is off.")
      .field(kOptim, &Optim::max_grad_norm)
      .at_least(0)
      .alias({"clip_grad", "grad_clip", "gradient_clipping"});
  group
      .key("nan_policy",
           "A loss or gradient that is not finite: stop the run (exit code 3), or skip the step and say so.")
      .field(kOptim, &Optim::nan_policy);
  group.key("optim_args", "Further arguments of the optimizer, as a mapping or as a=1,b=2 (docs/precision.md).")
      .field(kOptim, &Optim::args)
      .rewrite(pairs_as_mapping());
  group
      .key("label_smoothing_factor",
           "Training's loss is (1 - ε) · cross-entropy + ε · the mean over the vocabulary of -log p.")
      .field(kOptim, &Optim::label_smoothing_factor)
      .at_least(0)
      .below(1)
      .alias({"label_smoothing"});
  group
      .key("neftune_noise_alpha",
           "NEFTune: uniform noise of ± α / √(L · hidden size) on the embeddings of a document of L tokens.")
      .field(kOptim, &Optim::neftune_noise_alpha)
      .at_least(0);
}

void add_machine(GroupBuilder group) {
  group.key("device", "Where to compute: auto takes a GPU if there is one; cuda:1 is the second.")
      .field(kRunMachine, &Machine::device)
      .choices({"auto", "cpu", "cuda"})
      .numbered("cuda")
      .spelled({{"gpu", "cuda"}})
      .alias("use_cpu", when_true("cpu"))
      .alias("no_cuda", when_true("cpu"));
  group.key("threads", "CPU threads.")
      .field(kRunMachine, &Machine::threads)
      .at_least(1)
      .at_most(4096)
      .unset({"auto", "all"})
      .default_note("all cores")
      .alias({"num_threads", "kt_num_threads", "accelerate_kt_num_threads"});
  group.key("seed", "Fixes everything that is random.")
      .field(kRunMachine, &Machine::seed)
      .at_least(0)
      .alias({"random_seed", "train_seed"});
  group.key("data_seed", "The order of the samples and the validation split.")
      .field(kRunMachine, &Machine::data_seed)
      .at_least(0)
      .default_note("seed");
  group
      .key("auto_find_batch_size",
           "Halve per_device_train_batch_size, and double the accumulation, until the memory plan fits.")
      .field(kRunMachine, &Machine::auto_find_batch_size);
  group
      .key("cuda_graphs",
           "Queue a step whose sizes were seen before in one call; auto: where that can be done, true: or stop with an "
           "error.")
      .field(kRunMachine, &Machine::cuda_graphs)
      .spelled({{"yes", "true"}, {"no", "false"}});
  group
      .key("profile",
           "Log where the time of some steps goes, stage by stage, and write their time line (docs/tuning.md).")
      .field(kRunMachine, &Machine::profile);
  group.key("profile_steps", "Steps that profile: true records, after the first three; 0: all, evaluations included.")
      .field(kRunMachine, &Machine::profile_steps)
      .at_least(0);
}

}  // namespace

void add_train_keys(std::vector<KeySpec>& table) {
  add_length({table, "Length of the run and batch"});
  add_rate({table, "Learning rate"});
  add_shape({table, "Learning rate"});
  add_optimizer({table, "Optimizer"});
  add_machine({table, "Machine and seeds"});
}

}  // namespace hone
