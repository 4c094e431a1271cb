// How values of other tools are rewritten into ours: the rules that schema_table_*.cpp attaches to aliases.
#pragma once

#include <initializer_list>
#include <map>
#include <string>

#include "app/config/schema.h"

namespace hone {

/// A switch: true says `value`, false says nothing.
Rewrite when_true(std::string value);

/// A switch: true says `yes`, false says `no` with the emphasis given.
Rewrite either(std::string yes, std::string no, Emphasis of_no = Emphasis::kPlain);

/// As the rule, but it yields to what another name of the key says.
Rewrite weakly(Rewrite rule);

/// A switch with the opposite sense.
Rewrite negated();

/// Rewrites the values named in `table` (any case); "" says nothing. Others stay as they are.
Rewrite mapped(std::map<std::string, std::string> table);

/// True says `value`, false and null say nothing, anything else stays as it is.
Rewrite true_means(std::string value);

/// Puts `before` in front of the text: "(q|k)_proj" → "re:(q|k)_proj".
Rewrite prefixed(std::string before);

/// PEFT's modules: names stay, in a list or in one text; a text that is an expression, ".*[qv]_proj", becomes the
/// pattern of one that must match a whole name (params/pattern.h).
Rewrite modules_of_peft();

/// Wraps the value into a mapping of one member: enable_thinking: false → {enable_thinking: false}.
Rewrite member_of(std::string name);

/// The same, of values that are true or false.
Rewrite switch_of(Rewrite rule);

/// Text of pairs as a mapping: "momentum=0.9, nesterov=true" → {momentum: 0.9, nesterov: true}; other values stay.
Rewrite pairs_as_mapping();

/// axolotl's roles_to_train: [assistant] alone says assistant; any other list is left to be refused.
Rewrite roles_to_train();

/// Words in one text as a list: "optimizer, params" or "optimizer+params" → [optimizer, params].
Rewrite words_as_list();

/// A DeepSpeed name or file: zero2, zero3_offload, ds_z3.json → the stage; a file that does not say one stays.
Rewrite deepspeed_stage();

/// The same as cpu_offload: what the file offloads to the CPU; of a name with "offload" in it the optimizer, with stage
/// 3 the weights, too.
Rewrite deepspeed_offload();

/// FSDP's option list: full_shard… → 3, shard_grad_op → 2, no_shard → 0.
Rewrite fsdp_stage();
/// The same as cpu_offload: "offload" is weights and optimizer.
Rewrite fsdp_offload();

/// A switch beside a coefficient: false says 0, whatever the coefficient; true says nothing.
Rewrite off_means_zero();

/// A list says `value`; anything else stays as it is.
Rewrite list_means(std::string value);

/// A list of one item says that item.
Rewrite only_item();

/// A share of the samples to train on, 0.95, as that to evaluate on, 0.05. Yields to a validation split that is stated.
Rewrite rest_of_one();

/// The value as that of `name` in every entry of datasets: 512 → {max_tokens: 512}. Throws UserError as the entry's
/// key.
Rewrite entry_member(std::string name);

/// A path as one entry of datasets of this type.
Rewrite entry_of_type(std::string type);

/// A switch: true says `value`, whatever else is stated; false says nothing.
Rewrite decisive(std::string value);

}  // namespace hone
