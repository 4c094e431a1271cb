// The rules that rewrite values of other tools into Hone's. schema_table_*.cpp attaches them to aliases.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

#include "config/schema.h"

namespace hone {

/// A switch: true states `value`, false states nothing.
Rewrite when_true(std::string value);

/// A switch: true states `yes`; false states `no` with emphasis `of_no`.
Rewrite either(std::string yes, std::string no, Emphasis of_no = Emphasis::kPlain);

/// The rule with weak emphasis: another name of the key has precedence.
Rewrite weakly(Rewrite rule);

/// A switch with the opposite sense.
Rewrite negated();

/// Replaces the values in `table` (any case); "" states nothing. Other values do not change.
Rewrite mapped(std::map<std::string, std::string> table);

/// Values in `table` (any case) state what is beside them, others nothing.
Rewrite stated_by(std::map<std::string, std::string> table);

/// The same for lora_exclude_modules of a kt_backend: "AMXINT8_SkipLoRA" states all-experts, others nothing.
Rewrite skips_lora_of_experts();

/// True states `value`; false and null state nothing; other values do not change.
Rewrite true_means(std::string value);

/// Prepends `before`: "(q|k)_proj" → "re:(q|k)_proj".
Rewrite prefixed(std::string before);

/// PEFT's modules: names do not change, in a list or in one text; a regular expression, ".*[qv]_proj", becomes the
/// pattern that must match a whole name (params/pattern.h).
Rewrite modules_of_peft();

/// Axolotl's unfrozen_parameters: regular expressions that are matched at the beginning of a name, in which a dot is
/// literal unless a + follows it. Each becomes a pattern that matches the same names. Throws UserError for an
/// expression that ends in a range of rows.
Rewrite patterns_of_axolotl();

/// A text or a list that is not empty states `value`; null, false and nothing state nothing.
Rewrite any_means(std::string value);

/// Makes a mapping with one member: enable_thinking: false → {enable_thinking: false}.
Rewrite member_of(std::string name);

/// The rule, applied to true and false only.
Rewrite switch_of(Rewrite rule);

/// Parses text of pairs: "momentum=0.9, nesterov=true" → {momentum: 0.9, nesterov: true}. Other values do not change.
Rewrite pairs_as_mapping();

/// axolotl's roles_to_train: [assistant] becomes assistant; other lists do not change, and are refused later.
Rewrite roles_to_train();

/// Splits a text into a list: "optimizer, params" or "optimizer+params" → [optimizer, params].
Rewrite words_as_list();

/// A DeepSpeed name or file: zero2, zero3_offload, ds_z3.json → the stage. A file without a stage does not change.
Rewrite deepspeed_stage();

/// The same for cpu_offload: what the file offloads to the CPU. A name with "offload" means the optimizer, with stage 3
/// also the weights.
Rewrite deepspeed_offload();

/// The same for dp_shard_size: what the file calls mics_shard_size. Throws UserError for zero_hpz_partition_size: it
/// keeps other copies of weights than groups do.
Rewrite deepspeed_shard_size();

/// FSDP's option list: full_shard, hybrid_shard → 3; shard_grad_op, hybrid_shard_zero2 → 2; no_shard → 0. true means
/// full_shard and yields to any other.
Rewrite fsdp_stage();
/// The same for cpu_offload: "offload" means weights and optimizer.
Rewrite fsdp_offload();
/// The same for dp_shard_size: hybrid_shard means the ranks of a host; a stated number has precedence.
Rewrite fsdp_shard_size();

/// FSDP's mapping fsdp_config, or the JSON file that has it, with members named with fsdp_ or without: the stage from
/// sharding_strategy or reshard_after_forward, which must agree; version 2 alone means 3 and yields to any other.
/// Throws UserError for members that are not known, or would change training; docs/distributed.md lists all.
Rewrite fsdp_config_stage();
/// The same for cpu_offload: offload_params means weights and optimizer, activation_cpu_offload activations.
Rewrite fsdp_config_offload();
/// The same for dp_shard_size, as fsdp_shard_size.
Rewrite fsdp_config_shard_size();
/// The same for gradient_checkpointing: activation_checkpointing: true means true, and yields to any other.
Rewrite fsdp_config_checkpointing();

/// A switch of a coefficient: false states 0 and has precedence over the coefficient; true states nothing.
Rewrite off_means_zero();

/// A list states `value`; other values do not change.
Rewrite list_means(std::string value);

/// A list of one item becomes the item.
Rewrite only_item();

/// The share of samples for training, 0.95, as the share for evaluation, 0.05. A stated validation split has
/// precedence.
Rewrite rest_of_one();

/// Makes the value that of `name` in every entry of datasets: 512 → {max_tokens: 512}. Throws UserError as the entry's
/// key does.
Rewrite entry_member(std::string name);

/// A path as one entry of datasets of this type.
Rewrite entry_of_type(std::string type);

/// A switch: true states `value` with precedence over all other statements; false states nothing.
Rewrite decisive(std::string value);

}  // namespace hone
