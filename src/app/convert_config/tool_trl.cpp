#include "app/convert_config/tool.h"

namespace hone {

/// TRL's SFTConfig, ModelConfig, ScriptArguments and DatasetMixtureConfig: `trl sft --config FILE` or flags.
ToolText trl_text() {
  return {"trl",
          "TRL",
          "transformers",
          {"trl sft", "sft.py"},
          {"dataset_text_field", "completion_only_loss", "assistant_only_loss", "dataset_train_split", "use_peft",
           "packing_strategy", "dataset_name", "eval_packing", "loss_type", "lora_task_type", "max_length",
           "dataset_kwargs", "truncation_mode"},
          R"(
dataset_config, dataset_configuration ! the subset of a data set of the hub: put its file into datasets
dataset_train_split(train), dataset_test_split(test) ? the file in datasets is that split
dataset_streaming, streaming ~ files are read row by row
dataset_text_field(text) ! columns have other names: state column_mapping in the entry of datasets
dataset_kwargs, dataset_batch_size ~ data are prepared in one way
datasets.data_files = datasets
eval_packing ~ evaluation is packed too; the loss is the same
loss_type(nll) ! another loss than cross-entropy is not in this version
eos_token, pad_token, pad_to_multiple_of ~ nothing is padded, and the end of a turn is the template's
model_init_kwargs, ignore_bias_buffers, lora_task_type, gradient_checkpointing_kwargs ~ the model is read in one way
use_bnb_nested_quant, bnb_4bit_quant_storage ~ only load_in_4bit would read it
use_dft ! another loss than cross-entropy is not in this version
)",
          R"(
learning_rate: 2.0e-5
max_length: 1024
overlength: truncate_right
router_aux_loss_coef: 0.001
train_on: all
)",
          R"(
lora_r: 16
lora_alpha: 32
lora_dropout: 0.05
)",
          "train_on fits the data: TRL learns every token of chats and texts, unless assistant_only_loss is on, and of "
          "prompt "
          "and completion the completion"};
}

}  // namespace hone
