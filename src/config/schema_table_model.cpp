#include "config/alias_rules.h"
#include "config/schema_builder.h"

namespace hone {
namespace {

using Model = RunConfig::Model;
using Lora = RunConfig::Lora;
using Machine = RunConfig::Machine;
constexpr auto kModel = &RunConfig::model;
constexpr auto kLora = &RunConfig::lora;
constexpr auto kMachine = &RunConfig::machine;
const std::vector<DType> kFloats = {DType::kF32, DType::kBF16}, kMoments = {DType::kF32, DType::kBF16, DType::kI8};

const std::map<std::string, std::string> kFloatSpellings = {
    {"bf16", "bfloat16"}, {"torch.bfloat16", "bfloat16"}, {"fp32", "float32"},
    {"f32", "float32"},   {"float", "float32"},           {"torch.float32", "float32"},
};

std::map<std::string, std::string> dtype_spellings() {
  std::map<std::string, std::string> all = kFloatSpellings;
  all.merge(std::map<std::string, std::string>{{"fp16", "float16"}, {"half", "float16"}, {"torch.float16", "float16"}});
  return all;
}

void add_model(GroupBuilder group) {
  group
      .key("model_name_or_path",
           "Folder of the model in Hugging Face format, or ORG/NAME[@REVISION] of the Hugging Face hub, which is "
           "downloaded.")
      .field(kModel, &Model::model_name_or_path)
      .type(KeyType::kPath)
      .alias({"base_model", "model", "model_path", "model_id", "model.name", "model.path"});
  group
      .key("model_revision",
           "Branch, tag or commit of the model's repository on the Hugging Face hub, as in ORG/NAME@REVISION.")
      .field(kModel, &Model::model_revision)
      .default_note("none: main")
      .alias({"revision_of_model"});
  group.key("adapter_name_or_path", "Folder of a PEFT adapter to continue, or its name on the Hugging Face hub.")
      .field(kModel, &Model::adapter_name_or_path)
      .type(KeyType::kPath)
      .rewrite(only_item())
      .alias({"lora_model_dir", "adapters", "adapter_path", "resume_adapter"});
  group.key("finetuning_type", "Train all weights, or low-rank adapters beside frozen ones.")
      .field(kModel, &Model::finetuning_type)
      .later({"qlora", "freeze", "oft"})
      .instead(
          "for qlora write finetuning_type: lora and base_weight_dtype: nf4, for freeze finetuning_type: full and "
          "freeze_parameters")
      .default_note("full; lora if any lora_ key or adapter_name_or_path is stated")
      .alias("adapter", mapped({{"none", "full"}, {"", ""}, {"qlora", "lora"}}),
             {{"base_weight_dtype", mapped({{"qlora", "nf4"}, {"lora", ""}, {"full", ""}, {"none", ""}, {"", ""}})}})
      .alias({"tuner_type", "training_type", "train_type"})
      .alias("kt_train_mode", mapped({{"hybrid", "freeze"}}))
      .alias("accelerate_kt_train_mode", mapped({{"hybrid", "freeze"}}))
      .alias("use_lora", either("lora", "full", Emphasis::kWeak))
      .alias("use_peft", either("lora", "full", Emphasis::kWeak))
      .alias("lora", either("lora", "full", Emphasis::kWeak))
      .alias("lora.enabled", either("lora", "full", Emphasis::kWeak));
  group
      .key("freeze_parameters",
           "Patterns of parameters that are not trained: names, globs, or re: and a regular expression.")
      .field(kModel, &Model::freeze_parameters)
      .alias("freeze_parameters_regex", prefixed("re:"));
  group
      .key("trainable_parameters",
           "Patterns of parameters that are trained even if freeze_parameters matches them. Axolotl's "
           "unfrozen_parameters also says freeze_parameters: *.")
      .field(kModel, &Model::trainable_parameters)
      .alias("unfrozen_parameters", patterns_of_axolotl(), {{"freeze_parameters", any_means("*")}});
  group.key("tokenizer_name_or_path", "Folder of the tokenizer, where it is not the model's.")
      .field(kModel, &Model::tokenizer_name_or_path)
      .type(KeyType::kPath)
      .default_note("the model's")
      .alias({"tokenizer_path", "tokenizer_name"});
  group
      .key("add_tokens",
           "Tokens that the tokenizer gets; their rows of embedding and head, if missing, are the mean of the others. "
           "With adapters, both are trained whole.")
      .field(kModel, &Model::add_tokens);
  group.key("add_special_tokens", "As add_tokens, of special tokens.").field(kModel, &Model::add_special_tokens);
  group.key("resize_vocab", "Embedding and head get rows for every token of tokenizer_name_or_path.")
      .field(kModel, &Model::resize_vocab);
}

void add_lora(GroupBuilder group) {
  group.key("lora_r", "Rank of the adapters.")
      .field(kLora, &Lora::r)
      .at_least(1)
      .default_note("16; the adapter's with adapter_name_or_path")
      .alias({"r", "rank", "lora_rank", "kt_lora_rank", "accelerate_kt_lora_rank"});
  group.key("lora_alpha", "Numerator of the scaling alpha / r, which is printed at start.")
      .field(kLora, &Lora::alpha)
      .above(0)
      .default_note("2 × lora_r; the adapter's with adapter_name_or_path")
      .alias({"alpha", "kt_lora_alpha", "accelerate_kt_lora_alpha"});
  group.key("lora_dropout", "Dropout on the input of the adapters.")
      .field(kLora, &Lora::dropout)
      .at_least(0)
      .below(1)
      .default_note("0; the adapter's with adapter_name_or_path")
      .alias({"dropout", "kt_lora_dropout", "accelerate_kt_lora_dropout"});
  group
      .key("lora_target_modules",
           "What gets an adapter: attention, all-linear (attention with its gates, dense and shared MLPs), "
           "all-experts, names, globs, re: and a regular expression. Each must match.")
      .field(kLora, &Lora::target_modules)
      .spelled({{"all", "all-linear"}})
      .default_note("all-linear, unless lora_target_parameters or adapter_name_or_path is stated")
      .alias({"target_modules", "lora_target"})
      .alias("lora_target_linear", when_true("all-linear"))
      .alias("target_regex", prefixed("re:"));
  group
      .key("lora_exclude_modules",
           "Modules without adapters among lora_target_modules, written as there. Each must match. PEFT's name "
           "exclude_modules also says lora_exclude_unmatched: warn.")
      .field(kLora, &Lora::exclude_modules)
      .alias("exclude_modules", modules_of_peft(), {{"lora_exclude_unmatched", any_means("warn")}})
      .alias("exclude", modules_of_peft(), {{"lora_exclude_unmatched", any_means("warn")}});
  group.key("lora_exclude_unmatched", "An entry of lora_exclude_modules that matches nothing: refuse the run, or warn.")
      .field(kLora, &Lora::exclude_unmatched);
  group
      .key("lora_target_parameters",
           "Fused expert tensors and routers (gate.weight) that get an adapter, as PEFT's target_parameters.")
      .field(kLora, &Lora::target_parameters)
      .alias({"target_parameters"});
  group.key("lora_modules_to_save", "Modules trained whole beside the adapters and saved with them.")
      .field(kLora, &Lora::modules_to_save)
      .spelled({{"gate", "router"},
                {"mlp.gate", "router"},
                {"mlp.router", "router"},
                {"block_sparse_moe.gate", "router"},
                {"embeddings", "embed_tokens"},
                {"model.embed_tokens", "embed_tokens"}})
      .alias({"modules_to_save", "additional_target"});
  group.key("use_rslora", "Scale by alpha / sqrt(r) instead of alpha / r.")
      .field(kLora, &Lora::use_rslora)
      .alias({"peft_use_rslora", "lora_use_rslora"});
  group
      .key("expert_lora",
           "Experts' adapters: an A and a B for each of gate, up and down, or one A for the fused gate_up.")
      .field(kLora, &Lora::expert_lora);
  group
      .key("adapter_layout",
           "How expert adapters are written at the end: per expert, PEFT's target_parameters, or for KTransformers or "
           "SGLang.")
      .field(kLora, &Lora::adapter_layout)
      .default_note("as trained");
  group.key("use_dora", "Weight-decomposed LoRA: a magnitude for each output is trained, too. Not of routed experts.")
      .field(kLora, &Lora::use_dora)
      .alias({"peft_use_dora", "lora_use_dora"});
  group.key("loraplus_lr_ratio", "LoRA+: B of the adapters learns at this times learning_rate.")
      .field(kLora, &Lora::loraplus_lr_ratio)
      .above(0)
      .alias({"lorap_lr_ratio"});
  group
      .key("lora_rank_pattern",
           "Ranks other than lora_r, by pattern of modules as in PEFT, or attention, all-linear, all-experts. The "
           "first that matches counts; each must match.")
      .field(kLora, &Lora::rank_pattern)
      .alias({"rank_pattern"});
  group.key("lora_alpha_pattern", "Alphas other than lora_alpha, as lora_rank_pattern.")
      .field(kLora, &Lora::alpha_pattern)
      .alias({"alpha_pattern"});
  group.key("lora_layers", "Layers that get adapters, numbered from 0: [0, 4-7].")
      .field(kLora, &Lora::layers)
      .default_note("all")
      .alias({"layers_to_transform", "lora_layers_to_transform", "peft_layers_to_transform"});
  group
      .key("lora_init",
           "Initial values: true (A Kaiming, B zero), gaussian (A normal with 1 / r, B zero), false (B random too).")
      .field(kLora, &Lora::init)
      .later({"pissa", "pissa_init", "olora", "loftq", "eva", "corda", "orthogonal", "lora_ga", "mica"})
      .spelled({{"default", "true"}, {"yes", "true"}, {"no", "false"}, {"kaiming", "true"}})
      .alias({"init_lora_weights", "peft_init_lora_weights"});
  group.later("lora_bias", KeyType::kString, "Biases trained beside the adapters.")
      .neutral("none")
      .alias({"lora.bias"});
  group.no_effect("layers_pattern", "Layers are known by their numbers.").alias({"peft_layers_pattern"});
  group.no_effect("loraplus_lr_embedding", "Embeddings have no adapters.");
}

void add_router(GroupBuilder group) {
  group.key("freeze_router", "Keep the routers as they are.")
      .field(kModel, &Model::freeze_router)
      .default_note("true with LoRA, false in full fine-tuning")
      .alias({"moe_freeze_router", "freeze_moe_router"})
      .alias("train_router", negated());
  group.key("router_aux_loss_coef", "Weight of the load-balancing loss, which is measured in any case.")
      .field(kModel, &Model::router_aux_loss_coef)
      .at_least(0)
      .default_note("the model's in full fine-tuning with trained routers, else 0")
      .alias({"moe_aux_loss_coef", "moe_aux_loss_coeff", "auxiliary_loss_weight"})
      .alias("use_auxiliary_loss", off_means_zero());
  group
      .key("aux_loss_reduction",
           "Over micro-batches: mean by tokens, or hf_sum, the sum that Hugging Face's trainer makes of it.")
      .field(kModel, &Model::aux_loss_reduction);
  group
      .key("moe_log_expert_load",
           "Write the balance of every layer to the metrics; at evaluations, log the routers' balance and write "
           "expert_load.jsonl.")
      .field(kModel, &Model::moe_log_expert_load)
      .alias({"monitor_expert_usage", "log_expert_metrics"});
  group
      .key("router_z_loss_coef",
           "Weight of the mean over tokens and routers of (log Σ exp(logits))²; measured in any case.")
      .field(kModel, &Model::router_z_loss_coef)
      .at_least(0)
      .alias({"moe_z_loss_coef", "moe_z_loss_coeff"});
  group.later("router_bias_update_rate", KeyType::kNumber, "Updates of selection biases.").neutral(0);
  group
      .key("router_jitter_noise",
           "Training multiplies the input of routers and experts by uniform numbers in 1 ± this; 0 is off.")
      .field(kModel, &Model::router_jitter_noise)
      .at_least(0)
      .below(1)
      .default_note("the model's");
  group.later("router_dtype", KeyType::kString, "Routers in another dtype than float32.")
      .neutral("float32")
      .unset({"fp32"})
      .alias({"moe_router_dtype"});
}

void add_precision(GroupBuilder group) {
  group.key("dtype", "Weights and activations while computing.")
      .field(kModel, &Model::dtype, {DType::kBF16, DType::kF32})
      .later({"float16", "fp8", "fp8_hybrid", "e4m3", "nvfp4"})
      .instead(
          "use bfloat16, which has the range of float32 (float16 would need loss scaling), or float32; products in "
          "8-bit floats are the key fp8, beside bfloat16")
      .spelled(dtype_spellings())
      .unset({"auto"})
      .alias({"torch_dtype", "recipe", "matmul_dtype"})
      .alias("bf16", mapped({{"true", "bfloat16"},
                             {"yes", "bfloat16"},
                             {"auto", "bfloat16"},
                             {"full", "bfloat16"},
                             {"false", "float32"},
                             {"no", "float32"}}));
  group
      .key("base_weight_dtype",
           "Frozen matrices of layers, experts included: in dtype, or packed while they are read (docs/precision.md). "
           "auto: as the checkpoint has them.")
      .field(kModel, &Model::base_weight_dtype)
      .choices(base_format_names())
      .later({"fp4", "hqq", "eetq", "aqlm", "gptq", "awq"})
      .spelled({{"bnb-nf4", "nf4"}, {"bnb", "nf4"}})
      .alias("load_in_4bit", when_true("nf4"))
      .alias("load_in_8bit", when_true("int8"))
      .alias("qlora_bnb", when_true("nf4"))
      .alias("quantization_bit", mapped({{"4", "nf4"}, {"8", "int8"}, {"0", ""}, {"none", ""}}))
      .alias("quant_bits", mapped({{"4", "nf4"}, {"8", "int8"}, {"0", ""}, {"none", ""}}));
  group.key("bnb_4bit_use_double_quant", "Whether the scales of nf4 have 8 bits, too; false means nf4_float_scales.")
      .field(kModel, &Model::nested_scales)
      .alias({"double_quantization", "use_bnb_nested_quant"});
  group
      .key("base_weight_keep",
           "Patterns of frozen weights that base_weight_dtype leaves in dtype. `hone train --dry-run` measures which "
           "are worth their memory.")
      .field(kModel, &Model::base_weight_keep)
      .alias({"llm_int8_skip_modules"});
  group
      .key("expert_weight_dtype",
           "Frozen weights of routed experts (docs/precision.md): auto as dtype, or as base_weight_dtype packs them; "
           "int8 where a CPU computes them; or a format of base_weight_dtype, for the experts only. KTransformers' "
           "*_SkipLoRA also says lora_exclude_modules: all-experts.")
      .field(kModel, &Model::expert_weight_dtype)
      .choices(expert_format_names())
      .later({"int4_rows"})
      .instead(
          "write int4 or int4_128, which have a scale for each 32 or 128 of a row where AMXINT4 has one for all of it; "
          "or int8, which has one for a row, too. Of normal weights in rows of 2048, AMXINT4 rounds away 15 % "
          "(root mean square), int4 10 %, int4_128 12 %, int8 0.8 %")
      .spelled({{"bf16", "bfloat16"},
                {"torch.bfloat16", "bfloat16"},
                {"amxbf16", "bfloat16"},
                {"amxint8", "int8"},
                {"amxfp8", "fp8"},
                {"amxint4", "int4_rows"},
                {"amxint4_kgroup", "int4"},
                {"amxbf16_skiplora", "bfloat16"},
                {"amxint8_skiplora", "int8"},
                {"amxint4_skiplora", "int4_rows"},
                {"amxint4_kgroup_skiplora", "int4"}})
      .alias({"kt_expert_weight_format", "accelerate_kt_expert_weight_format"})
      .alias("kt_backend", mapped({{"auto", ""}}), {{"lora_exclude_modules", skips_lora_of_experts()}})
      .alias("kt_config.backend", mapped({{"auto", ""}}), {{"lora_exclude_modules", skips_lora_of_experts()}})
      .alias("accelerate_kt_backend", mapped({{"auto", ""}}), {{"lora_exclude_modules", skips_lora_of_experts()}});
  group.key("grad_dtype", "Gradients of trained weights; those of norms, biases and adapters stay float32.")
      .field(kModel, &Model::grad_dtype, kFloats)
      .spelled(kFloatSpellings);
  group
      .key("master_dtype",
           "The optimizer's copy of the trained weights. bfloat16: there is none, the bfloat16 weights themselves are "
           "stepped.")
      .field(kModel, &Model::master_dtype, kFloats)
      .spelled(kFloatSpellings)
      .alias("pure_bf16", when_true("bfloat16"));
  group.key("opt_m_dtype", "First moments of the optimizer (docs/precision.md).")
      .field(kModel, &Model::opt_m_dtype, kMoments)
      .spelled(kFloatSpellings);
  group.key("opt_v_dtype", "Second moments of the optimizer, as opt_m_dtype.")
      .field(kModel, &Model::opt_v_dtype, kMoments)
      .spelled(kFloatSpellings);
  group
      .key(
          "gradient_checkpointing",
          "What backward recomputes: all (true), or norms and rotations; with activations also those of dense MLPs; "
          "with experts also gate and up of experts; with all_but_attention all but what attention returns. auto takes "
          "the fastest that the memory plan allows.")
      .field(kModel, &Model::gradient_checkpointing)
      .later({"selective"})
      .spelled({{"full", "true"},
                {"unsloth", "true"},
                {"yes", "true"},
                {"everything", "true"},
                {"no", "false"},
                {"none", "false"}})
      .rewrite(list_means("selective"))
      .alias({"recompute", "use_gradient_checkpointing", "activation_checkpointing", "recompute_granularity",
              "recompute_modules"});
  group
      .key(
          "layer_input_dtype",
          "What enters a layer, as it is kept for backward at every gradient_checkpointing: in dtype, or in 8-bit "
          "floats "
          "with a scale for 1 x 128, half the bytes on the GPU or, with cpu_offload: activations, on the host. Forward "
          "reads the exact values, so that a loss is unchanged; backward recomputes from the rounded ones "
          "(docs/memory.md).")
      .field(kModel, &Model::layer_input_dtype);
  group
      .key("moe_token_tile",
           "Tokens that experts take at a time, whose rows bound their memory (docs/memory.md); 0: all. auto: those of "
           "262,144 rows, one for each token and its experts, where a micro-batch can have more than 524,288 and "
           "backward recomputes experts.")
      .field(kModel, &Model::moe_token_tile)
      .unset({"auto"})
      .default_note("auto")
      .at_least(0);
  group
      .key("mlp_token_tile",
           "Tokens that dense MLPs and shared experts take at a time, whose rows bound their memory (docs/memory.md); "
           "0: all. auto: those whose rows of the widest one have 268 million elements, where a micro-batch can have "
           "more than 537 million and backward keeps nothing of them.")
      .field(kModel, &Model::mlp_token_tile)
      .unset({"auto"})
      .default_note("auto")
      .at_least(0);
  group.later("fp16", KeyType::kBool, "Training in float16.")
      .neutral(false)
      .instead("use bf16: true, which has the range of float32; float16 would need loss scaling");
  group
      .key("fp8",
           "Products of attention's, MLPs' and mixers' matrices in 8-bit floats (docs/precision.md): one scale for an "
           "operand, one for a row, or one for 1 x 128 and 128 x 128. Adapters, routers and the head stay in dtype. "
           "Frozen "
           "experts, too, that expert_weight_dtype holds in fp8_matrix. GPUs of compute capability 9.0.")
      .field(kModel, &Model::fp8)
      .spelled({{"false", "off"},
                {"no", "off"},
                {"none", "off"},
                {"true", "tensorwise"},
                {"yes", "tensorwise"},
                {"hybrid", "tensorwise"},
                {"e4m3", "tensorwise"},
                {"delayed", "tensorwise"},
                {"delayedscaling", "tensorwise"},
                {"float8currentscaling", "tensorwise"},
                {"rowwise_with_gw_hp", "rowwise"},
                {"float8blockscaling", "blockwise"}})
      .alias({"use_fp8", "fp8_recipe"})
      .also({{"fp8_weight_gradients", stated_by({{"rowwise_with_gw_hp", "false"}})}});
  group
      .key("fp8_weight_gradients",
           "With fp8, products that are gradients of weights take 8-bit floats, too; false: they stay in dtype.")
      .field(kModel, &Model::fp8_weight_gradients);
  group
      .key("fp8_keep",
           "Patterns of matrices that fp8 leaves in dtype. None: the first matrix of the first layer stays "
           "there.")
      .field(kModel, &Model::fp8_keep);
  group.no_effect("quantize_moe_experts", "Frozen experts are packed as other frozen weights are.");
  group.later("bnb_4bit_quant_type", KeyType::kString, "Another code of load_in_4bit than nf4.")
      .neutral("nf4")
      .instead("leave it out, or write nf4");
}

void add_parallel(GroupBuilder group) {
  group
      .key("zero_stage",
           "What ranks share (docs/distributed.md): 0 nothing; 1 the optimizer's state; 2 gradients, too; 3 the "
           "weights, too, frozen ones as well.")
      .field(kMachine, &Machine::zero_stage)
      .spelled({{"false", "0"}, {"no", "0"}, {"none", "0"}})
      .alias({"zero_level"})
      .alias("deepspeed", deepspeed_stage(),
             {{"cpu_offload", deepspeed_offload()}, {"dp_shard_size", deepspeed_shard_size()}})
      .alias("deepspeed_config", deepspeed_stage(),
             {{"cpu_offload", deepspeed_offload()}, {"dp_shard_size", deepspeed_shard_size()}})
      .alias("fsdp", fsdp_stage(), {{"cpu_offload", fsdp_offload()}, {"dp_shard_size", fsdp_shard_size()}})
      .alias("fsdp_config", fsdp_config_stage(),
             {{"cpu_offload", fsdp_config_offload()},
              {"dp_shard_size", fsdp_config_shard_size()},
              {"gradient_checkpointing", fsdp_config_checkpointing()}});
  group
      .key("dp_shard_size",
           "How many consecutive ranks share what zero_stage says: all; host, those of a host; or a number that "
           "divides the ranks. Such groups are replicas of each other (HSDP).")
      .field(kMachine, &Machine::dp_shard_size)
      .unset({"auto", "-1"})
      .alias({"data_parallel_shard_degree"});
  group
      .key("dp_replicate_size",
           "How many groups of ranks are replicas of each other. Stated both, it must agree with dp_shard_size.")
      .field(kMachine, &Machine::dp_replicate_size)
      .at_least(1)
      .unset({"auto"})
      .default_note("the number of ranks over dp_shard_size")
      .alias({"data_parallel_replicate_degree"});
  group.no_effect("fsdp_version", "zero_stage says what ranks share, for either version.");
  group
      .key("stage3_param_persistence_threshold",
           "With zero_stage 2 or 3, or cpu_offload, tensors of fewer elements stay whole on the device of every rank.")
      .field(kMachine, &Machine::least_sharded_elements)
      .at_least(0)
      .alias({"param_persistence_threshold"});
  group
      .key("weight_fetch",
           "How weights of other ranks (zero_stage 3) and tokens for their experts travel: peer, by copies between the "
           "GPUs of a host; collective, by NCCL; auto, peer where that is possible.")
      .field(kMachine, &Machine::weight_fetch);
  group.key("num_gpus", "How many ranks train together, to be checked: the launcher starts them.")
      .field(kMachine, &Machine::num_gpus)
      .at_least(1)
      .unset({"auto"})
      .default_note("as many as were started");
  group
      .key("ddp_timeout",
           "Seconds that ranks wait for one that does not come to a collective, before the run ends with its name.")
      .field(kMachine, &Machine::ddp_timeout)
      .at_least(1);
  group
      .key("cpu_offload",
           "What is in host memory between uses (docs/memory.md): optimizer, its moments and master weights; params, "
           "the weights of layers and their adapters; experts, of these the routed experts' only; activations, what "
           "forward keeps for backward; auto, what is large in the memory plan.")
      .field(kMachine, &Machine::cpu_offload)
      .rewrite(words_as_list())
      .adds_up()
      .unset({"false"})
      .alias("use_cpu_offload", true_means("auto"))
      .alias("offload_optimizer", true_means("optimizer"))
      .alias("offload_param", true_means("params"))
      .alias("offload_params", true_means("params"))
      .alias("offload_activations", true_means("activations"))
      .alias("activation_offloading", true_means("activations"))
      .alias("offload_experts", true_means("experts"));
  group
      .key("frozen_weights",
           "Where frozen weights of layers are between uses (docs/memory.md): memory; file, in the files of the model, "
           "from which each layer is read for each use, so that memory holds two layers of them.")
      .field(kMachine, &Machine::frozen_weights);
  group
      .key("expert_parallel_size",
           "How many consecutive ranks spread the routed experts over them (docs/distributed.md): a divisor of the "
           "ranks and of the experts. 1: every rank has all experts.")
      .field(kMachine, &Machine::expert_parallel_size)
      .at_least(1)
      .alias({"ep_size", "ep_degree", "expert_model_parallel_size"})
      .alias("fast_moe", mapped({{"true", ""}, {"false", ""}}));
  group
      .key("experts_device",
           "What computes the routed experts (docs/memory.md): gpu, the run's device; cpu, the CPU beside it, in whose "
           "memory they then are; auto, the fastest that fits of the device, streaming, the CPU, and some layers on "
           "the CPU.")
      .field(kMachine, &Machine::experts_device)
      .alias("use_kt", when_true("cpu"))
      .alias("kt_config.enabled", when_true("cpu"));
  group
      .key("cpu_expert_layers",
           "With experts_device: cpu, of how many layers the CPU computes the routed experts; those of the others are "
           "on the device, or streamed with cpu_offload: experts. Default: all; auto chooses.")
      .field(kMachine, &Machine::cpu_expert_layers)
      .at_least(1)
      .alias({"n_cpu_moe"});
  group
      .key("offload_expert_layers",
           "With cpu_offload: experts or params, of how many layers the routed experts are streamed; those of the rest "
           "stay on the device. Default: all; auto chooses.")
      .field(kMachine, &Machine::offload_expert_layers)
      .at_least(1);
  group.later("tensor_parallel_size", KeyType::kInteger, "Tensor parallelism.").neutral(1);
  group.later("pipeline_parallel_size", KeyType::kInteger, "Pipeline parallelism.").neutral(1);
  group
      .later("context_parallel_size", KeyType::kInteger,
             "Context parallelism: the tokens of one document on several ranks.")
      .neutral(1);
  group.later("kt_num_gpu_experts", KeyType::kInteger, "Some experts of each layer on the GPU, the others on the CPU.")
      .neutral(0)
      .instead("write 0; cpu_expert_layers leaves the experts of whole layers on the GPU")
      .alias({"accelerate_kt_num_gpu_experts", "kt_config.num_gpu_experts"});
  group.later("kt_optimize_rule", KeyType::kString, "Rules that place modules.")
      .instead("write experts_device: cpu, which is what the rules for experts do")
      .alias({"kt_config"});
}

}  // namespace

void add_model_keys(std::vector<KeySpec>& table) {
  add_model({table, "Model and method"});
  add_lora({table, "LoRA"});
  add_router({table, "Routers"});
  add_precision({table, "Precision and memory"});
  add_parallel({table, "Ranks and placement"});
}

}  // namespace hone
