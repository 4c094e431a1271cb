#include "text/named_templates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/base/error.h"
#include "core/text/json.h"
#include "text/chat_template.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

Json turn(const std::string& role, const std::string& content) { return {{"role", role}, {"content", content}}; }

/// The text that the template `name` writes for `messages`, with "<s>" and "</s>" as bos and eos.
std::string text_of(const std::string& name, const std::vector<Json>& messages, bool asks, Json variables = {}) {
  const NamedTemplate* named = find_named_template(name);
  if (named == nullptr) return "no template " + name;
  ChatInput chat;
  for (const Json& message : messages) chat.messages->push_back(message);
  chat.variables = Json{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  if (!variables.is_null()) chat.variables->update(variables);
  chat.add_generation_prompt = asks;
  try {
    return ChatTemplate(named->text, name).render(chat).text;
  } catch (const UserError& error) {
    return error.what();
  }
}

/// What the published format writes for a system message, "Hi", "Yo." and the question "Why?", to be answered.
struct Published {
  std::string name, text;
};

void PrintTo(const Published& format, std::ostream* out) { *out << format.name; }

class PublishedFormat : public testing::TestWithParam<Published> {};

TEST_P(PublishedFormat, IsWhatTheTemplateWrites) {
  const std::vector<Json> messages = {turn("system", "Be brief."), turn("user", "Hi"), turn("assistant", "Yo."),
                                      turn("user", "Why?")};
  EXPECT_EQ(text_of(GetParam().name, messages, true), GetParam().text);
}

INSTANTIATE_TEST_SUITE_P(
    Names, PublishedFormat,
    testing::Values(
        Published{"chatml",
                  "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                  "<|im_start|>assistant\nYo.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"},
        Published{"qwen",
                  "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                  "<|im_start|>assistant\nYo.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"},
        Published{"qwen3",
                  "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
                  "<|im_start|>assistant\nYo.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"},
        Published{"llama3",
                  "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\nYo.<|eot_id|>"
                  "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|>"
                  "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        Published{"llama2", "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yo. </s><s>[INST] Why? [/INST]"},
        Published{"mistral", "<s>[INST] Be brief.\n\nHi[/INST] Yo.</s>[INST] Why?[/INST]"},
        Published{"mistral_v1", "<s> [INST] Be brief.\n\nHi [/INST] Yo.</s> [INST] Why? [/INST]"},
        Published{"mistral_v2v3", "<s>[INST] Hi[/INST] Yo.</s>[INST] Be brief.\n\nWhy?[/INST]"},
        Published{"mistral_v3_tekken", "<s>[INST]Hi[/INST]Yo.</s>[INST]Be brief.\n\nWhy?[/INST]"},
        Published{"phi_3",
                  "<s><|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYo.<|end|>\n"
                  "<|user|>\nWhy?<|end|>\n<|assistant|>\n"},
        Published{"phi_35",
                  "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYo.<|end|>\n"
                  "<|user|>\nWhy?<|end|>\n<|assistant|>\n"},
        Published{"phi4",
                  "<|im_start|>system<|im_sep|>Be brief.<|im_end|><|im_start|>user<|im_sep|>Hi<|im_end|>"
                  "<|im_start|>assistant<|im_sep|>Yo.<|im_end|><|im_start|>user<|im_sep|>Why?<|im_end|>"
                  "<|im_start|>assistant<|im_sep|>"},
        Published{"deepseek_v2", "<s>Be brief.\n\n<｜User｜>Hi<｜Assistant｜>Yo.</s><｜User｜>Why?<｜Assistant｜>"},
        Published{"deepseek_v3",
                  "<s>Be brief.<｜User｜>Hi<｜Assistant｜>Yo.<｜end▁of▁sentence｜><｜User｜>Why?<｜Assistant｜>"}));

TEST(NamedTemplates, EachFormatHasItsOwnWays) {
  const std::vector<Json> answered = {turn("user", " Hi "), turn("assistant", " Yo.\n")};
  EXPECT_EQ(text_of("qwen_25", answered, false),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n Yo.\n<|im_end|>\n")
      << "the system message of a chat without one";
  EXPECT_EQ(text_of("gemma", answered, true),
            "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYo.<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_THAT(text_of("gemma", {turn("system", "a"), turn("user", "b")}, true), HasSubstr("no system"));
  EXPECT_EQ(text_of("llama3", answered, false),
            "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nYo.<|eot_id|>");
  const Json thoughts = {{"role", "assistant"}, {"content", "Yo."}, {"reasoning_content", "Hm."}};
  EXPECT_EQ(text_of("qwen3", {turn("user", "Hi"), thoughts, turn("user", "Why?"), thoughts}, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
            "<|im_start|>assistant\n<think>\nHm.\n</think>\n\nYo.<|im_end|>\n")
      << "thoughts of earlier answers are dropped";
  EXPECT_EQ(text_of("qwen3", {turn("user", "Hi")}, true, {{"enable_thinking", false}}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(text_of("qwen3_nothink", {turn("user", "Hi"), turn("assistant", "Yo.")}, false),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo.<|im_end|>\n");
}

TEST(NamedTemplates, RefuseCallsThatTheyDoNotWrite) {
  Json call = turn("assistant", "");
  call["tool_calls"] = Json::parse(R"([{"type": "function", "function": {"name": "f", "arguments": {}}}])");
  for (const char* name : {"qwen", "qwen3", "qwen3_nothink", "mistral", "deepseek_v3"}) {
    EXPECT_THAT(text_of(name, {turn("user", "Hi"), call}, false), HasSubstr("chat template")) << name;
  }
}

TEST(NamedTemplates, TakeTheTextOfContentInParts) {
  const Json parts = {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "Hi"}}}}};
  for (const NamedTemplate& named : named_templates()) {
    EXPECT_EQ(text_of(named.name, {parts}, true), text_of(named.name, {turn("user", "Hi")}, true)) << named.name;
  }
}

TEST(NamedTemplates, AreFoundAsUsersSpellThem) {
  EXPECT_EQ(find_named_template("ChatML"), find_named_template("chatml"));
  EXPECT_EQ(find_named_template("mistral-v1"), find_named_template("mistral_v1"));
  EXPECT_EQ(find_named_template("deepseek3"), find_named_template("deepseek_v3"));
  EXPECT_EQ(find_named_template("alpaca"), nullptr);
  EXPECT_THAT(template_names(), HasSubstr("chatml, llama3"));
}

/// The reduced tokenizer of Qwen3, whose special tokens are those of ChatML, with these settings.
Tokenizer qwen_with(const Json& settings) {
  const fs::path folder = fs::path(testing::TempDir()) / "hone_named_templates";
  fs::create_directories(folder);
  const fs::path source = fs::path(HONE_SOURCE_DIR) / "tests/fixtures/tokenizers/qwen3/tokenizer.json";
  fs::copy_file(source, folder / "tokenizer.json", fs::copy_options::overwrite_existing);
  std::ofstream(folder / "tokenizer_config.json") << settings.dump();
  Tokenizer tokenizer = Tokenizer::load(folder);
  fs::remove_all(folder);
  return tokenizer;
}

std::string refusal(const std::string& name, const Tokenizer& tokenizer) {
  try {
    choose_template(name, tokenizer, "chat_template");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(NamedTemplates, NeedTheirTokens) {
  const Tokenizer tokenizer = qwen_with({{"eos_token", "<|im_end|>"}});
  EXPECT_EQ(refusal("chatml", tokenizer), "");
  EXPECT_THAT(refusal("llama3", tokenizer),
              AllOf(HasSubstr("llama3 writes \"<|start_header_id|>\", \"<|end_header_id|>\", \"<|eot_id|>\""),
                    HasSubstr("add_special_tokens: [\"<|start_header_id|>\"")));
  EXPECT_THAT(refusal("phi4", tokenizer), HasSubstr("writes \"<|im_sep|>\", which"));
  EXPECT_EQ(refusal("mistral", tokenizer), "");
  EXPECT_THAT(refusal("mistral", qwen_with(Json::object())), HasSubstr("special_tokens: {eos_token: TOKEN}"));
}

TEST(NamedTemplates, EndAnswersWithTheirOwnToken) {
  const TokenChoice chatml = with_stop({}, *find_named_template("chatml"));
  EXPECT_EQ(chatml.eot, std::vector<std::string>{"<|im_end|>"});
  EXPECT_EQ(with_stop(chatml, *find_named_template("chatml")).eot.size(), 1u);
  TokenChoice stated;
  stated.eos = "<|im_end|>";
  EXPECT_TRUE(with_stop(stated, *find_named_template("chatml")).eot.empty());
  EXPECT_TRUE(with_stop({}, *find_named_template("mistral")).empty());
}

TEST(NamedTemplates, GiveWayToAModelsOwnThatWritesTheSame) {
  const std::string own =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const Tokenizer tokenizer = qwen_with({{"eos_token", "<|im_end|>"}, {"chat_template", own}});
  const ChosenTemplate same = choose_template("chatml", tokenizer, "chat_template");
  EXPECT_EQ(same.text, "") << "the model's own, which may know tools";
  EXPECT_EQ(same.note, "");
  const ChosenTemplate other = choose_template("qwen3", tokenizer, "chat_template");
  EXPECT_EQ(other.text, find_named_template("qwen3")->text);
  EXPECT_THAT(other.note, HasSubstr("renders chats otherwise than chat_template qwen3"));
  const ChosenTemplate jinja = choose_template("{{ messages }}", tokenizer, "chat_template");
  EXPECT_EQ(jinja.text, "{{ messages }}");
  EXPECT_EQ(choose_template("", tokenizer, "chat_template").text, "");
  EXPECT_EQ(choose_template("chatml", qwen_with({{"eos_token", "<|im_end|>"}}), "chat_template").text,
            find_named_template("chatml")->text);
}

}  // namespace
}  // namespace hone
