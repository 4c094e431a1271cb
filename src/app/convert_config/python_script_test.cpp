// Python scripts that call TRL or Unsloth: what their literals say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/convert_config/convert_testing.h"
#include "app/convert_config/python_script.h"

namespace hone {
namespace {

const std::string kTrl = R"(
from trl import SFTConfig, SFTTrainer   # SFTTrainer(lr=1) in a comment
model_id = "Qwen/Qwen3-30B-A3B"
LR: float = 2e-4
steps = 2 * (50 + 10)
args = SFTConfig(
    "out/run",
    learning_rate=LR, max_steps=steps, per_device_train_batch_size=2,
    bf16=True, max_length=1_024, packing=False, warmup_ratio=0.1,
    report_to=["tensorboard"], seed=compute_seed(),
)
peft_config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", 'v_' 'proj'], lora_dropout=0.0)
dataset = load_dataset("json", data_files="chat.jsonl", split="train[:200]")
model = AutoModelForCausalLM.from_pretrained(model_id, torch_dtype=torch.bfloat16)
trainer = SFTTrainer(model=model, args=args, train_dataset=dataset, peft_config=peft_config,
                     formatting_func=make_text)
trainer.train()
)";

TEST_F(ConvertConfig, ReadsTrlScriptsWhereArgumentsAreLiterals) {
  const ResolvedConfig config = converted(write("train.py", kTrl));
  EXPECT_TRUE(has(printed_, "TRL")) << printed_;
  EXPECT_EQ(config.run.model.model_name_or_path, "Qwen/Qwen3-30B-A3B");
  EXPECT_EQ(name_of(config.run.model.finetuning_type), "lora");
  EXPECT_EQ(config.run.schedule.learning_rate, 2e-4);
  EXPECT_EQ(config.run.schedule.max_steps, 120);
  EXPECT_EQ(config.run.data.max_length, 1024);
  EXPECT_THAT(config.run.lora.target_modules, testing::ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(config.run.data.datasets[0].path, "chat.jsonl");
  EXPECT_EQ(config.run.data.datasets[0].samples, 200);
  EXPECT_EQ(config.run.report.output_dir, "out/run");
  EXPECT_TRUE(has(printed_, "look at         seed = compute_seed()")) << printed_;
  EXPECT_TRUE(has(printed_, "formatting_func = make_text")) << printed_;
}

const std::string kUnsloth = R"(
from unsloth import FastLanguageModel
max_seq_length = 2048
model, tokenizer = FastLanguageModel.from_pretrained(
    model_name = "unsloth/Qwen3-30B-A3B", max_seq_length = max_seq_length, dtype = None, load_in_4bit = False)
model = FastLanguageModel.get_peft_model(model, r = 16,
    target_modules = ["q_proj", "k_proj"], lora_alpha = 16, lora_dropout = 0, bias = "none",
    use_gradient_checkpointing = "unsloth", random_state = 3407, use_rslora = False, loftq_config = None)
trainer = SFTTrainer(model = model, tokenizer = tokenizer, train_dataset = dataset, dataset_text_field = "text",
    args = TrainingArguments(per_device_train_batch_size = 2, gradient_accumulation_steps = 4, warmup_steps = 5,
        max_steps = 60, learning_rate = 2e-4, fp16 = not is_bfloat16_supported(), bf16 = is_bfloat16_supported(),
        optim = "adamw_8bit", weight_decay = 0.01, lr_scheduler_type = "linear", seed = 3407, output_dir = "outputs"))
trainer = train_on_responses_only(trainer, instruction_part = "<|im_start|>user\n")
)";

TEST_F(ConvertConfig, ReadsUnslothScripts) {
  const ResolvedConfig config = converted(write("train.py", kUnsloth));
  EXPECT_TRUE(has(printed_, "Unsloth")) << printed_;
  EXPECT_EQ(config.run.model.model_name_or_path, "unsloth/Qwen3-30B-A3B");
  EXPECT_EQ(config.run.data.max_length, 2048);
  EXPECT_EQ(name_of(config.run.optim.name), "adamw_8bit");
  EXPECT_EQ(config.run.machine.seed, 3407);
  EXPECT_EQ(name_of(config.run.data.train_on), "assistant");
  EXPECT_EQ(config.run.schedule.global_batch_size, 8);
  EXPECT_EQ(name_of(config.run.model.gradient_checkpointing), "true");
}

TEST_F(ConvertConfig, UnslothsBaseOfFourBitsIsMeantThoughItIsNotStated) {
  std::string script = kUnsloth;
  const std::string stated = ", load_in_4bit = False";
  script.erase(script.find(stated), stated.size());
  EXPECT_EQ(converted(write("train.py", script)).run.model.base_weight_dtype.name(), "nf4");
  EXPECT_TRUE(has(text_, "Unsloth's default")) << text_;
}

TEST_F(ConvertConfig, AScriptIsReadAndNeverRun) {
  EXPECT_TRUE(has(refused(write("none.py", "print('hello')\n")), "starts no supervised training"));
  EXPECT_TRUE(has(refused(write("dpo.py", "t = DPOTrainer(model, beta=0.1)\n")), "not supervised fine-tuning"));
  for (const std::string text :
       {"SFTTrainer(", "SFTTrainer(a=[", "SFTTrainer(a={1:", "SFTTrainer(a=\"x", "SFTTrainer(a=f'{x}', b=-",
        "SFTTrainer(a=\"\"\"x", "x = (1,\n", "SFTTrainer(*args, **kw)", "SFTTrainer(a=1 if b else 2)", "x"}) {
    try {
      (void)read_python_script(text, "x.py");
    } catch (const UserError&) {
    }
  }
  EXPECT_NO_THROW((void)read_python_script("SFTTrainer(a=" + std::string(5000, '(') + ")", "x.py"));
}

TEST(PythonTokens, LeaveOutCommentsAndLineEndsInBrackets) {
  std::string text;
  for (const PythonToken& token : python_tokens("a = f(1,  # one\n  r'\\d', '''x\ny''')\nb")) {
    text += token.kind == PythonToken::Kind::kLineEnd ? ";" : "<" + token.text + ">";
  }
  EXPECT_EQ(text, "<a><=><f><(><1><,><\\d><,><x\ny><)>;<b>;<>");
}

}  // namespace
}  // namespace hone
