// The guides that readers of other systems come from: their files, retold on a small model, and the commands of their
// texts as they are typed, on one rank and on two.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "app/chat/chat_model_testing.h"
#include "program.h"
#include "shell.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A folder with a small model, in which commands are typed into a shell that knows `hone`.
class Guides : public testing::Test {
 protected:
  Guides() {
    write_chat_model(folder_ / "model");
    fs::create_directories(folder_ / "bin");
    fs::create_symlink(hone_program(), folder_ / "bin/hone");
  }

  ShellOutcome type(const std::string& commands) const {
    return run_shell("(cd '" + (folder_ / "").string() + "'; export PATH=\"$PWD/bin:$PATH\"; " + commands + ")");
  }
  /// Expects that the commands succeed, and returns what they print.
  std::string works(const std::string& commands) const {
    const ShellOutcome outcome = type(commands);
    EXPECT_EQ(outcome.code, 0) << commands << "\n" << outcome.out;
    return outcome.out;
  }
  /// Expects that a run wrote so many steps with finite losses.
  void expect_trained(const std::string& output, size_t steps) const {
    const std::vector<Json> lines = read_json_lines(folder_ / (output + "/metrics.jsonl"));
    size_t found = 0;
    for (const Json& line : lines) {
      if (!line.contains("loss")) continue;
      ++found;
      EXPECT_TRUE(line["loss"].is_number() && std::isfinite(line["loss"].get<double>())) << line.dump();
    }
    EXPECT_EQ(found, steps) << output;
  }
  /// Trains a configuration on one rank and on two: the options are for both.
  void trains(const std::string& arguments, const std::string& output, size_t steps) const {
    works("hone train " + arguments + " output_dir=" + output + "-1");
    expect_trained(output + "-1", steps);
    works("hone launch -n 2 --device cpu -- train " + arguments + " output_dir=" + output + "-2");
    expect_trained(output + "-2", steps);
  }

  const Folder folder_;
};

// The node guide: full fine-tuning of a dense model, one model for each node and each with its part of the data.

class NodeGuide : public Guides {
 protected:
  NodeGuide() {
    std::string rows = "prompt,question,response\n";
    for (int i = 0; i < 24; ++i) {
      const std::string n = std::to_string(i);
      rows += (i % 3 == 0 ? "" : "\"Answer briefly, please.\"") + (",How many legs have " + n + " ants?,") +
              std::to_string(6 * i) + "\n";
    }
    folder_.write("faq.csv", rows);
  }
};

constexpr const char* kNodeConfig = R"({
  "model_args": {"model_name_or_path": "model"},
  "data_args": {"dataset_path": "data/training_data_node_0.csv", "max_seq_length": 128},
  "training_args": {"num_train_epochs": 1, "learning_rate": 5e-5, "lr_scheduler_type": "cosine", "warmup_ratio": 0.1}
})";

constexpr const char* kNodeScript = R"(#!/bin/bash
export OMP_NUM_THREADS=2
NODE_ID=${1:-0}
DATA="./data/training_data_node_${NODE_ID}.csv"
OUT="./outputs/node_${NODE_ID}"
mkdir -p ${OUT}
accelerate launch --num_processes 2 --num_machines 1 --mixed_precision bf16 \
    fine_tune_qwen3.py --model_name_or_path model --dataset_path ${DATA} --output_dir ${OUT} \
    --num_train_epochs 1 --per_device_train_batch_size 1 --gradient_accumulation_steps 1 \
    --learning_rate 5e-5 --max_seq_length 128 --logging_steps 1 --gradient_checkpointing --bf16 --tf32 \
    --deepspeed zero.json --report_to tensorboard
)";

constexpr const char* kNodeDeepSpeed = R"({
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
  "gradient_accumulation_steps": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0
})";

TEST_F(NodeGuide, DataArePreparedAndEachNodeTrainsItsPart) {
  works("hone prepare --input faq.csv --num_nodes 4 --output_dir ./data");
  EXPECT_THAT(names_in(folder_ / "data"),
              ElementsAre("dataset_stats.json", "training_data_node_0.csv", "training_data_node_1.csv",
                          "training_data_node_2.csv", "training_data_node_3.csv"));
  folder_.write("config.json", kNodeConfig);
  trains("config.json max_steps=2 logging_steps=1 device=cpu threads=1", "out", 2);
}

TEST_F(NodeGuide, TheLaunchScriptKeepsTheNumberOfItsNode) {
  folder_.write("launch_training.sh", kNodeScript);
  folder_.write("zero.json", kNodeDeepSpeed);
  works(
      "hone prepare --input faq.csv --num_nodes 2 --output_dir data; hone convert-config launch_training.sh --output "
      "node.yaml");
  const std::string config = read_file(folder_ / "node.yaml");
  EXPECT_THAT(config, AllOf(HasSubstr("training_data_node_${NODE_ID:-0}.csv"), HasSubstr("node_${NODE_ID:-0}")));
  const std::string options = "node.yaml max_steps=2 eval_steps=2 save_steps=2 report_to=jsonl device=cpu threads=1";
  works("hone launch -n 2 --device cpu -- train " + options);
  expect_trained("outputs/node_0", 2);
  works("NODE_ID=1 hone launch -n 2 --device cpu -- train " + options);
  expect_trained("outputs/node_1", 2);
}

TEST_F(NodeGuide, ErrorsStandInCollectedLogsAsTheGuideSearchesThem) {
  EXPECT_EQ(type("mkdir -p logs; HONE_COLLECTED_LOG=1 hone train nosuch.yaml > logs/node_0.log 2>&1").code, 2);
  EXPECT_THAT(works("grep ERROR logs/*.log"), HasSubstr("nosuch.yaml"));
  EXPECT_THAT(type("hone train nosuch.yaml").out, Not(HasSubstr("ERROR")));
  EXPECT_THAT(works("hone launch --slurm --nodes 1 -n 1 --dry-run -- train run.yaml"),
              HasSubstr("export HONE_COLLECTED_LOG=1"));
}

// The guide to LoRA on the attention of a Mixtral, with a configuration of sections and source code as data.

class AttentionGuide : public Guides {
 protected:
  AttentionGuide() {
    for (int i = 0; i < 6; ++i) {
      const std::string n = std::to_string(i);
      folder_.write("repo/src/part" + n + ".rs",
                    "/// Fees of part " + n + ".\npub struct Fee" + n +
                        " {\n    pub cents: i64,\n    pub rate: i64,\n}\n\n"
                        "impl Fee" +
                        n +
                        " {\n    pub fn total(&self, amount: i64) -> i64 {\n"
                        "        let share = amount * self.rate / 100;\n        self.cents + share + " +
                        n + "\n    }\n}\n");
    }
  }
  void configure(const std::string& training, const std::string& more = "") const {
    folder_.write("config.yaml", R"(model:
  name: "model"
  attn_implementation: flash_attention_2
  max_seq_length: 256
lora:
  r: 4
  lora_alpha: 8
  dropout: 0.05
  target_modules: [q_proj, k_proj, v_proj, o_proj]
  exclude_modules: [block_sparse_moe, w1, w2, w3, gate]
repository:
  path: repo
dataset:
  output_dir: data
  min_tokens: 10
training:
  learning_rate: 2.0e-4      # base
  min_learning_rate: 1.0e-6
  lr_scheduler_type: cosine
  warmup_ratio: 0.03
  per_device_train_batch_size: 1
  gradient_accumulation_steps: 2
  weight_decay: 0.01         # L2
  optim: adamw_torch_fused
  max_steps: 2
  logging_steps: 1
  gradient_checkpointing: true
  auto_find_batch_size: true
  gradient_accumulation_steps_auto: true
  bf16: true
  fp16: false
  eval_steps: 2
  save_steps: 2
  load_best_model_at_end: true
  metric_for_best_model: eval_loss
)" + training + R"(moe:
  use_auxiliary_loss: true
  auxiliary_loss_weight: 0.001
  freeze_router: false
  monitor_expert_usage: true
advanced:
  use_cpu_offload: true
  torch_compile: true
  early_stopping_patience: 3
validation:
  validation_split: 2
post_training:
  merge_and_save: true
)" + more);
  }
};

TEST_F(AttentionGuide, ItsFileTrainsAsItIs) {
  configure("  output_dir: outputs/one\n");
  const std::string said = works("hone train --config config.yaml device=cpu threads=1 --verbose");
  EXPECT_THAT(said,
              AllOf(HasSubstr("trainable params:"), HasSubstr("cpu_offload auto: nothing, since the device is the CPU"),
                    HasSubstr("'block_sparse_moe' matches nothing in this model"),
                    HasSubstr("gradient_accumulation_steps_auto has no effect: The accumulation always follows")));
  expect_trained("outputs/one", 2);
  EXPECT_TRUE(fs::exists(folder_ / "outputs/one/merged/config.json"));
  works("hone launch -n 2 --device cpu -- train --config config.yaml output_dir=outputs/two threads=1");
  expect_trained("outputs/two", 2);
  EXPECT_THAT(works("hone eval --config config.yaml --adapter outputs/one --base --max-samples 2 device=cpu"),
              HasSubstr("improvement"));
}

TEST_F(AttentionGuide, DataAndEstimateOfItsFile) {
  configure("  output_dir: outputs/one\n");
  EXPECT_THAT(works("hone prepare --config config.yaml --output data; ls data"), HasSubstr("all_data.jsonl"));
  EXPECT_THAT(works("hone validate --config config.yaml"), HasSubstr("valid: nothing was written"));
  EXPECT_THAT(works("hone estimate --config config.yaml device=cpu"),
              AllOf(HasSubstr("Disk: adapter"), HasSubstr("merged model")));
}

TEST_F(AttentionGuide, ItsGridIsOneFolderForEachPairOfValues) {
  configure("  output_dir: \"out/{learning_rate}-{weight_decay}\"\n");
  const std::string grid = R"(for lr in 1e-4 2e-4; do for wd in 0.01 0.1; do
    sed "s/learning_rate: 2.*/learning_rate: $lr/; s/weight_decay: .*/weight_decay: $wd/" config.yaml > grid.yaml
    hone train grid.yaml device=cpu threads=1 merge_and_save=false OPTIONS || exit 1
  done; done)";
  const auto run = [&](const std::string& options) {
    std::string commands = grid;
    return type(commands.replace(commands.find("OPTIONS"), 7, options));
  };
  const ShellOutcome first = run("");
  EXPECT_EQ(first.code, 0) << first.out;
  EXPECT_THAT(names_in(folder_ / "out"), ElementsAre("0.0001-0.01", "0.0001-0.1", "0.0002-0.01", "0.0002-0.1"));
  const ShellOutcome again = run("");
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.out, HasSubstr("the output folder is not empty"));
  EXPECT_EQ(run("resume=auto").code, 0) << "the same folders";
  EXPECT_EQ(names_in(folder_ / "out").size(), 4u);
}

TEST_F(AttentionGuide, OneFolderForAllOfItsGridIsRefusedWithTheWayOut) {
  configure("  output_dir: outputs/one\n");
  works("hone train config.yaml device=cpu threads=1");
  const ShellOutcome second = type("hone train config.yaml learning_rate=1e-4 device=cpu threads=1");
  EXPECT_EQ(second.code, 2);
  EXPECT_THAT(second.out, AllOf(HasSubstr("the output folder is not empty"),
                                HasSubstr("out/{learning_rate}-{weight_decay}"), Not(HasSubstr("--force"))));
}

TEST_F(AttentionGuide, Float16IsRefusedOnceWithTheWayOut) {
  configure("  output_dir: outputs/one\n");
  const std::string half = "sed 's/bf16: true/bf16: false/; s/fp16: false/fp16: true/' config.yaml > half.yaml; ";
  for (const char* command : {"hone train --config half.yaml", "hone launch -n 2 --device cpu -- train half.yaml"}) {
    const ShellOutcome outcome = type(half + command);
    EXPECT_EQ(outcome.code, 2);
    const std::string& text = outcome.out;
    EXPECT_THAT(text, HasSubstr("use bf16: true"));
    EXPECT_EQ(text.find("error:"), text.rfind("error:")) << text;
  }
}

// The guide to SFT scripts of Qwen3-MoE.

constexpr const char* kScript = R"(#!/bin/sh
MODEL_PATH="${MODEL_PATH}"
DATA_PATH="${DATA_PATH}"
OUTPUT_PATH="$CKPT_PREFIX/ckpt"
NUM_GPU=$(nvidia-smi --list-gpus | wc -l)
NUM_STEP=2
export HF_HOME="$CKPT_PREFIX/cache"
PYTHONWARNINGS="ignore::FutureWarning" \
torchrun --standalone --nproc-per-node=$NUM_GPU qwen3_sft.py \
    --model_path $MODEL_PATH --dataset_path $DATA_PATH --output_dir $OUTPUT_PATH \
    --train_steps $NUM_STEP --micro_batch_size 2 --max_length 128 \
    --deepspeed_config zero3.json --use_fast_moe_block --use_liger_kernel --torch_compile
    # --use_packing
)";

TEST_F(Guides, ScriptsOfQwen3MoeKeepTheirVariables) {
  std::string rows;
  for (int i = 0; i < 160; ++i) {
    rows += Json{{"instruction", "Double the number"}, {"input", std::to_string(i)}, {"output", std::to_string(2 * i)}}
                .dump() +
            "\n";
  }
  folder_.write("rows.jsonl", rows);
  folder_.write("qwen3_sft.sh", kScript);
  folder_.write("zero3.json", kNodeDeepSpeed);
  works("hone convert-config qwen3_sft.sh --output run.yaml");
  const std::string variables = "export MODEL_PATH=model DATA_PATH=rows.jsonl CKPT_PREFIX=ck; ";
  const std::string options = "run.yaml logging_steps=1 save_strategy=no device=cpu threads=1";
  works(variables + "hone train " + options);
  expect_trained("ck/ckpt", 2);
  works(variables + "CKPT_PREFIX=two; hone launch -n 2 --device cpu -- train " + options);
  expect_trained("two/ckpt", 2);
  EXPECT_THAT(type("unset MODEL_PATH; hone train " + options).out, HasSubstr("MODEL_PATH"));
}

// The guide to accelerated MoE: experts over ranks, and a file of benchmark scenarios.

TEST_F(Guides, ExpertsSpreadAsScatterMoeSays) {
  folder_.write("rows.jsonl",
                R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"
                "\n");
  folder_.write("run.yaml",
                "model_name_or_path: model\ndatasets: rows.jsonl\nmax_length: 32\nmax_steps: 2\nlogging_steps: 1\n"
                "data_checks: warn\nsave_strategy: no\ndevice: cpu\nthreads: 1\noutput_dir: out\n"
                "training:\n  moe:\n    scattermoe:\n      ep_degree: 2\n");
  works("hone launch -n 2 --device cpu -- train run.yaml");
  expect_trained("out", 2);
  EXPECT_THAT(type("hone train run.yaml output_dir=one").out, HasSubstr("hone launch -n 2"));
}

TEST_F(Guides, ScenariosOfItsBenchmarksAreAGrid) {
  folder_.write(
      "scenarios.yaml",
      "scenarios:\n  - name: full\n    framework_config:\n      - # plain\n      - moe-scattermoe-granite-ep2\n"
      "    arguments:\n      learning_rate: 5e-5\n      torch_dtype: float32\n"
      "      gradient_accumulation_steps: null\n      per_device_train_batch_size: 2\n"
      "      max_seq_length: 16\n      max_steps: 1\n      model_name_or_path: [model]\n");
  const std::string command = "hone bench grid scenarios.yaml --ranks 1,2 --global-batch 4";
  EXPECT_THAT(works(command + " --dry-run"),
              AllOf(HasSubstr("hone bench step --model model"), HasSubstr("--expert-parallel-size 2")));
  works("CUDA_VISIBLE_DEVICES=-1 " + command + " --output results");
  const std::vector<Json> rows = read_json_lines(folder_ / "results/grid.jsonl");
  EXPECT_EQ(rows.size(), 3u);
  for (const Json& row : rows) EXPECT_EQ(row["status"], "measured") << row.dump();
}

// The guide of KTransformers: its keys beside an ordinary run, and LLaMA-Factory's file.

TEST_F(Guides, KeysOfKTransformersTrain) {
  std::string rows;
  for (int i = 0; i < 8; ++i) {
    rows +=
        Json{{"instruction", "Say " + std::to_string(i)}, {"input", ""}, {"output", std::to_string(i)}}.dump() + "\n";
  }
  folder_.write("data/identity.jsonl", rows);
  folder_.write("data/dataset_info.json", R"({"identity": {"file_name": "identity.jsonl"}})");
  folder_.write("kt.yaml",
                "model_name_or_path: model\ndatasets: data/identity.jsonl\nmax_length: 64\nmax_steps: 2\n"
                "logging_steps: 1\nsave_strategy: no\nlearning_rate: 1.0e-3\ndevice: cpu\noutput_dir: out\n"
                "use_kt: true\nkt_backend: AMXBF16\nkt_num_threads: 1\nkt_tp_enabled: true\nkt_threadpool_count: 2\n"
                "kt_weight_path: null\nkt_num_gpu_experts: 0\nkt_share_backward_bb: true\nkt_max_cache_depth: 2\n"
                "kt_lora_rank: 4\nkt_lora_alpha: 8.0\nkt_use_lora_experts: false\n"
                "lora_target_modules: [all-linear, all-experts]\ngradient_checkpointing: true\n");
  trains("kt.yaml", "kt", 2);
  const std::string run =
      "model_name_or_path: model\ndatasets: data/identity.jsonl\nmax_length: 64\nmax_steps: 1\n"
      "save_strategy: no\ndevice: cpu\nuse_kt: true\n";
  folder_.write("old.yaml", run +
                                "kt_config:\n  backend: AMXBF16\n  num_threads: 1\n  lora_rank: 4\n  lora_alpha: 8.0\n"
                                "  share_cache_pool: true\n  max_cache_depth: 2\n");
  works("hone train old.yaml output_dir=old");
  expect_trained("old", 1);
  EXPECT_EQ(Json::parse(read_file(folder_ / "old/adapter_config.json"))["r"], 4);
  folder_.write("wrong.yaml", run + "kt_config: {cache_deep: 2}\n");
  EXPECT_THAT(type("hone train wrong.yaml").out, HasSubstr("unknown key 'cache_deep'"));
  // The template that the file names writes these tokens.
  works("sed -i 's/<|user|>/<|im_start|>/g; s/<|end|>/<|im_end|>/g' model/tokenizer.json model/tokenizer_config.json");
  fs::copy_file(fs::path(HONE_SOURCE_DIR) / "tests/fixtures/templates/chatml.jinja",
                folder_ / "model/chat_template.jinja", fs::copy_options::overwrite_existing);
  folder_.write("lf.yaml",
                "model_name_or_path: model\nstage: sft\ndo_train: true\nfinetuning_type: lora\nlora_rank: 4\n"
                "lora_target: all\ndataset: identity\ntemplate: qwen3\ncutoff_len: 64\noutput_dir: out/lf\n"
                "logging_steps: 1\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 1\n"
                "learning_rate: 1.0e-3\nmax_steps: 2\nbf16: true\nuse_kt: true\n"
                "kt_config: {kt_backend: AMXBF16, kt_num_threads: 1, kt_threadpool_count: 2, kt_max_cache_depth: 2}\n");
  works("hone convert-config lf.yaml --output run.yaml");
  trains("run.yaml save_strategy=no device=cpu", "lf", 2);
}

}  // namespace
}  // namespace hone
