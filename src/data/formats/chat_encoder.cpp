#include "data/formats/chat_encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/text/json.h"
#include "data/formats/rewritten_turns.h"
#include "data/formats/text_key.h"
#include "text/chat_tokens.h"
#include "text/utf8.h"

namespace hone {

namespace {

std::string roles_of(const RenderedChat& chat) {
  std::vector<std::string> roles;
  for (const RenderedMessage& message : chat.messages) {
    if (std::find(roles.begin(), roles.end(), message.role) == roles.end()) roles.push_back(message.role);
  }
  return fmt::format("{}", fmt::join(roles, ", "));
}

/// Index of the first message after the last user message.
size_t behind_last_question(const RenderedChat& chat) {
  size_t begin = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (chat.messages[i].role == "user") begin = i + 1;
  }
  return begin;
}

std::string why_nothing_is_learnt(const RenderedChat& chat, bool has_ranges) {
  if (has_ranges) return "every supervised message has the weight 0";
  const bool answered = std::any_of(chat.messages.begin(), chat.messages.end(),
                                    [](const RenderedMessage& message) { return message.role == "assistant"; });
  if (!answered) return fmt::format("no message has the role 'assistant' (roles: {})", roles_of(chat));
  return "the template renders nothing of the assistant's supervised messages";
}

/// Splits bytes [begin, end) of a content span where the weight changes; bytes outside all details are not supervised.
template <class Add>
void cut_by_details(const Span& span, size_t begin, size_t end, const std::vector<TrainDetail>& details, Add add) {
  size_t done = begin;
  for (const TrainDetail& detail : details) {
    // Converts a byte of the content to a byte of the text.
    const auto place = [&](size_t byte) {
      return byte <= span.content_offset ? begin : std::min(end, span.begin + (byte - span.content_offset));
    };
    const size_t from = std::max(done, place(detail.begin)), to = std::max(done, place(detail.end));
    if (done < from) add(done, from, 0.0f);
    if (from < to) add(from, to, detail.weight);
    done = std::max(done, to);
  }
  if (done < end) add(done, end, 0.0f);
}

bool vanishes(const Coverage& part) { return part.characters > 0 && part.rendered == 0; }

/// How to have messages of this role rendered.
std::string advice_for(const std::string& role) {
  if (role == "developer") return "column_mapping: {roles: {system: developer}} reads them as system messages";
  if (role == "system" || role == "user" || role == "assistant" || role == "tool")
    return "use a chat_template that writes them";
  return fmt::format("map the role to one of the template's, for example column_mapping: {{roles: {{system: {}}}}}",
                     role);
}

/// EncodedRow::not_rendered. Answers that are not learnt, and rewritten ones, may be rendered shortened.
std::vector<std::string> not_rendered(const RenderedChat& chat, const std::vector<size_t>& learnt,
                                      const std::vector<bool>& is_rewritten) {
  constexpr size_t kLongestRole = 40;
  std::vector<std::string> sentences;
  const auto add = [&](std::string sentence) {
    if (std::find(sentences.begin(), sentences.end(), sentence) == sentences.end())
      sentences.push_back(std::move(sentence));
  };
  if (vanishes(chat.tools)) {
    add("the template renders no tools: the model never sees those of the row; use a chat_template that writes them");
  }
  std::vector<bool> is_learnt(chat.messages.size(), false);
  for (const size_t message : learnt) is_learnt[message] = true;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    const RenderedMessage& message = chat.messages[i];
    if (is_rewritten[i]) continue;
    if (vanishes(message.tool_calls)) {
      add("the template renders no tool calls: those of the row are not learnt; use a chat_template that writes them");
    }
    if (!vanishes(message.content) || (message.role == "assistant" && !is_learnt[i])) continue;
    const std::string role =
        message.role.size() > kLongestRole ? message.role.substr(0, kLongestRole) + "…" : message.role;
    add(fmt::format("a message with the role '{}' is rendered nowhere by the template; {}", repair_utf8(role),
                    advice_for(repair_utf8(role))));
  }
  return sentences;
}

uint64_t key_of(const RenderedChat& chat) {
  TextKey key;
  const std::string_view text = chat.text;
  for (const Span& span : chat.spans) key.add(text.substr(span.begin, span.end - span.begin));
  return key.value();
}

[[noreturn]] void refuse_rewritten(size_t message, const std::string& where) {
  throw UserError(fmt::format("the template renders messages[{}] differently once more messages follow (for example "
                              "without its thinking)",
                              message),
                  where, "history_rewrites: expand trains on it in a separate sample, mask does not train on it");
}

}  // namespace

ChatEncoder::ChatEncoder(const Tokenizer& tokenizer, const ChatEncoderOptions& options)
    : tokenizer_(tokenizer),
      train_on_(options.train_on),
      split_special_tokens_(options.split_special_tokens),
      history_rewrites_(options.history_rewrites),
      longest_sample_(options.longest_sample),
      variables_(special_token_variables(tokenizer)),
      mask_(mask_options(tokenizer, options.train_on)) {
  mask_.learn_empty_thinking = options.learn_empty_thinking;
  variables_->update(options.chat_template_kwargs);
  for (const AddedToken& token : tokenizer.added_tokens()) {
    if (is_control_token(token)) control_ids_.push_back(token.id);
  }
  if (!options.chat_template.empty()) {
    template_.emplace(options.chat_template, options.chat_template_name);
  } else if (const auto own = tokenizer.chat_template()) {
    template_.emplace(*own, "chat_template");
    if (const auto tools = tokenizer.chat_template("tool_use"))
      tool_template_.emplace(*tools, "chat_template tool_use");
  }
}

const ChatTemplate& ChatEncoder::template_for(const Conversation& conversation, const std::string& where) const {
  // As in transformers: of several templates, the one named tool_use if the conversation has tools.
  if (tool_template_ && conversation.tools->is_array()) return *tool_template_;
  if (template_) return *template_;
  throw UserError(
      "the model has no chat template, which messages need", where,
      "name one that is built in (chat_template: chatml), set chat_template_file, or write the data as text: "
      "prompt and completion");
}

ChatInput ChatEncoder::input_of(const Conversation& conversation, size_t count) const {
  ChatInput input;
  const auto& messages = conversation.messages->get_ref<const Json::array_t&>();
  input.messages = Json(Json::array_t(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(count)));
  input.tools = conversation.tools;
  input.variables = variables_;
  input.variables->update(conversation.template_kwargs);
  return input;
}

RenderedChat ChatEncoder::render(const Conversation& conversation, size_t count, const std::string& where) const {
  try {
    RenderedChat chat = template_for(conversation, where).render(input_of(conversation, count));
    complete_last_answer(chat, mask_);
    return chat;
  } catch (const UserError& error) {
    if (error.where() == where) throw;
    const std::string place = error.where().empty() ? where : fmt::format("{}, at {}", where, error.where());
    throw UserError(error.message(), place, error.fix());
  }
}

std::vector<size_t> ChatEncoder::learnt_messages(const RenderedChat& chat, const Conversation& conversation) const {
  std::vector<size_t> learnt;
  for (size_t i = chat.messages.size(); i-- > conversation.completion_begin.value_or(0);) {
    if (chat.messages[i].role != "assistant") continue;
    if (conversation.weights[i] > 0) learnt.push_back(i);
    if (train_on_ == TrainOn::kLast) break;
  }
  std::reverse(learnt.begin(), learnt.end());
  return learnt;
}

std::vector<SupervisedRange> ChatEncoder::ranges_of(const RenderedChat& chat, const Conversation& conversation,
                                                    size_t completion_begin) const {
  MaskOptions mask = mask_;
  mask.completion_begin = completion_begin;
  std::vector<SupervisedRange> ranges = supervised_ranges(chat, mask);
  if (conversation.completion_begin) {
    const auto first = static_cast<int>(*conversation.completion_begin);
    std::erase_if(
        ranges, [&](const SupervisedRange& range) { return range.message_index >= 0 && range.message_index < first; });
  }
  return ranges;
}

std::vector<ChatEncoder::WeightedRange> ChatEncoder::weighted(const RenderedChat& chat,
                                                              const std::vector<SupervisedRange>& ranges,
                                                              const Conversation& conversation,
                                                              const std::vector<float>& weights) {
  std::vector<WeightedRange> result;
  const auto add = [&](size_t begin, size_t end, float weight) { result.push_back({begin, end, weight}); };
  for (const SupervisedRange& range : ranges) {
    for (size_t i = span_at(chat, range.begin); i < chat.spans.size() && chat.spans[i].begin < range.end; ++i) {
      const Span& span = chat.spans[i];
      const size_t begin = std::max(range.begin, span.begin), end = std::min(range.end, span.end);
      if (begin >= end) continue;
      const int message = range.message_index >= 0 ? range.message_index : span.message_index;
      const auto index = static_cast<size_t>(message);
      const float weight = message < 0 ? 1.0f : weights[index];
      const bool detailed = message >= 0 && span.message_index == message && span.kind == SpanKind::kContent &&
                            index < conversation.details.size() && !conversation.details[index].empty();
      if (!detailed) {
        add(begin, end, weight);
      } else {
        cut_by_details(span, begin, end, conversation.details[index],
                       [&](size_t from, size_t to, float factor) { add(from, to, weight * factor); });
      }
    }
  }
  return result;
}

/// Names the first control token in the text of messages, and says how to encode it as text.
std::string ChatEncoder::control_tokens_in(const RenderedChat& chat, const Encoding& encoding) const {
  if (control_ids_.empty()) return {};
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const int32_t id = encoding.ids[i];
    if (id < control_ids_.front() || id > control_ids_.back()) continue;
    if (!std::binary_search(control_ids_.begin(), control_ids_.end(), id)) continue;
    const std::string token = tokenizer_.id_to_token(id).value_or("");
    if (!is_of_message(chat, token, encoding.offsets[i])) continue;
    return fmt::format(
        "the text of a message contains the control token '{}', which is encoded as this token; "
        "split_special_tokens: true encodes such tokens in messages as text",
        token);
  }
  return {};
}

Sample ChatEncoder::masked(Encoding encoding, const std::vector<WeightedRange>& parts) {
  Sample sample;
  sample.labels.assign(encoding.ids.size(), kIgnoredLabel);
  std::vector<float> weights(encoding.ids.size(), 1.0f);
  size_t part = 0;
  for (size_t i = 0; i < encoding.ids.size(); ++i) {
    const size_t begin = encoding.offsets[i].begin;
    while (part < parts.size() && parts[part].end <= begin) ++part;
    if (part == parts.size() || begin < parts[part].begin || parts[part].weight == 0) continue;
    sample.labels[i] = encoding.ids[i];
    weights[i] = parts[part].weight;
  }
  if (std::any_of(weights.begin(), weights.end(), [](float weight) { return weight != 1.0f; })) {
    sample.weights = std::move(weights);
  }
  sample.input_ids = std::move(encoding.ids);
  return sample;
}

/// Counts the supervised answers, and those of them whose prompt at inference differs.
void ChatEncoder::compare_prompts(const Conversation& conversation, const RenderedChat& chat,
                                  const std::vector<SupervisedRange>& ranges, const std::vector<float>& weights,
                                  const std::string& where, PromptChecks& checks) const {
  constexpr size_t kMostRendered = 64;
  if (train_on_ == TrainOn::kAll) return;
  int last = -1;
  for (const SupervisedRange& range : ranges) {
    int message = range.message_index;
    if (message < 0) {  // a section of the completion begins with its first answer
      const auto begins = [&](const Span& span) { return span.message_index >= 0 && span.end > range.begin; };
      const auto first = chat.spans.begin() + static_cast<std::ptrdiff_t>(span_at(chat, range.begin));
      const auto span = std::find_if(first, chat.spans.end(), begins);
      if (span == chat.spans.end()) continue;
      message = span->message_index;
    }
    // Only the first part of an answer in several follows a prompt.
    if (message == last || weights[static_cast<size_t>(message)] == 0) continue;
    last = message;
    ++checks.answers;
    const auto index = static_cast<size_t>(message);
    if (checks.rendered < kMostRendered) {
      checks.last = prompts_.compare(template_for(conversation, where), chat, index, range.begin, [&] {
        ++checks.rendered;
        return input_of(conversation, index);
      });
    }
    if (checks.last) checks.differences.push_back(*checks.last);
  }
}

Sample ChatEncoder::expanded(const Conversation& conversation, const RenderedChat& chat,
                             const std::vector<size_t>& messages, size_t completion_begin, const std::string& where,
                             PromptChecks& checks) const {
  std::vector<SupervisedRange> ranges;
  for (const SupervisedRange& range : ranges_of(chat, conversation, completion_begin)) {
    if (range.message_index >= 0) {
      ranges.push_back(range);
      continue;
    }
    // A section of the completion: supervise only the rewritten messages in it; the other samples contain the rest.
    MaskOptions answers = mask_;
    answers.train_on = TrainOn::kAssistant;
    for (const SupervisedRange& answer : supervised_ranges(chat, answers)) ranges.push_back(answer);
  }
  std::vector<float> weights(conversation.weights.size(), 0.0f);
  for (const size_t message : messages) weights[message] = conversation.weights[message];
  compare_prompts(conversation, chat, ranges, weights, where, checks);
  return masked(encode_chat(tokenizer_, chat, split_special_tokens_), weighted(chat, ranges, conversation, weights));
}

/// Removes from `learnt` the answers that begin after the longest sample, and returns those of them that may be
/// rewritten.
std::vector<size_t> ChatEncoder::take_late(std::vector<size_t>& learnt, const RenderedChat& chat,
                                           const Encoding& encoding) const {
  if (!longest_sample_ || encoding.ids.size() <= *longest_sample_) return {};
  const size_t end = encoding.offsets[*longest_sample_].begin;
  std::vector<size_t> begins(chat.messages.size(), 0);  // where a message's content begins; 0: it has none
  for (const Span& span : chat.spans) {
    const bool says =
        span.kind == SpanKind::kContent || span.kind == SpanKind::kReasoning || span.kind == SpanKind::kToolCall;
    size_t& begin = begins[static_cast<size_t>(std::max(span.message_index, 0))];
    if (says && begin == 0) begin = span.begin;
  }
  const auto late =
      std::stable_partition(learnt.begin(), learnt.end(), [&](size_t message) { return begins[message] < end; });
  std::vector<size_t> result;
  std::copy_if(late, learnt.end(), std::back_inserter(result), [&](size_t message) {
    return !chat.messages[message].shown_whole() && message + 1 < chat.messages.size();
  });
  learnt.erase(late, learnt.end());
  return result;
}

ChatEncoder::Rewritten ChatEncoder::rewritten_answers(const Conversation& conversation, const RenderedChat& chat,
                                                      const Encoding& encoding, std::vector<size_t> learnt,
                                                      size_t completion_begin, const std::string& where) const {
  Rewritten result;
  if (train_on_ == TrainOn::kAll) return result;
  const auto render_first = [&](size_t count) { return render(conversation, count, where); };
  const std::vector<size_t> late = take_late(learnt, chat, encoding);
  for_rewritten_turns(chat, learnt, render_first, [&](const RenderedChat& ending, const std::vector<size_t>& messages) {
    result.messages.insert(result.messages.end(), messages.begin(), messages.end());
    if (history_rewrites_ != HistoryRewrites::kExpand) return;
    Sample sample = expanded(conversation, ending, messages, completion_begin, where, result.checks);
    if (sample.supervised() > 0) result.samples.push_back(std::move(sample));
  });
  std::ranges::reverse(result.samples);
  // A template treats the late ones alike: the first decides for all.
  if (late.empty()) return result;
  for_rewritten_turns(chat, {late.front()}, render_first, [&](const RenderedChat&, const std::vector<size_t>&) {
    result.messages.insert(result.messages.end(), late.begin(), late.end());
    if (history_rewrites_ == HistoryRewrites::kExpand) result.left_out = static_cast<int64_t>(late.size());
  });
  return result;
}

EncodedRow ChatEncoder::encode(const Conversation& conversation, const std::string& where) const {
  const RenderedChat chat = render(conversation, conversation.messages.size(), where);
  Encoding encoding = encode_chat(tokenizer_, chat, split_special_tokens_);
  const size_t completion_begin = conversation.completion_begin.value_or(behind_last_question(chat));
  const std::vector<size_t> learnt = learnt_messages(chat, conversation);
  Rewritten rewritten = rewritten_answers(conversation, chat, encoding, learnt, completion_begin, where);
  std::vector<float> weights = conversation.weights;
  std::vector<bool> is_rewritten(weights.size(), false);
  for (const size_t message : rewritten.messages) {
    weights[message] = 0;
    is_rewritten[message] = true;
  }

  EncodedRow row;
  row.history_rewritten = !rewritten.messages.empty();
  if (row.history_rewritten && history_rewrites_ == HistoryRewrites::kError)
    refuse_rewritten(std::ranges::min(rewritten.messages), where);
  const std::vector<SupervisedRange> ranges = ranges_of(chat, conversation, completion_begin);
  const std::vector<WeightedRange> parts = weighted(chat, ranges, conversation, weights);
  if (!split_special_tokens_) row.control_tokens = control_tokens_in(chat, encoding);
  row.sample = masked(std::move(encoding), parts);
  row.text_key = key_of(chat);
  row.not_rendered = not_rendered(chat, learnt, is_rewritten);
  PromptChecks checks;
  compare_prompts(conversation, chat, ranges, weights, where, checks);
  row.answers = checks.answers + rewritten.checks.answers;
  row.prompt_differences = std::move(checks.differences);
  std::ranges::move(rewritten.checks.differences, std::back_inserter(row.prompt_differences));
  for (const SupervisedRange& range : ranges) {
    if (range.message_index < 0) continue;
    const auto message = static_cast<size_t>(range.message_index);
    if (!chat.messages[message].shown_whole() && !is_rewritten[message]) row.partly_shown = true;
    if (row.turn_end_problem.empty() && !range.end_left_out)
      row.turn_end_problem = turn_end(chat, range, tokenizer_).problem(tokenizer_);
  }
  row.doubled_bos = begins_with_two_bos(row.sample.input_ids, tokenizer_.special_tokens());
  row.other_roles_ask =
      conversation.other_roles_ask && (train_on_ == TrainOn::kAssistant || train_on_ == TrainOn::kLast);
  row.expanded = std::move(rewritten.samples);
  row.expanded_left_out = rewritten.left_out;
  if (row.sample.supervised() > 0) return row;
  if (!row.expanded.empty()) {
    row.sample = std::move(row.expanded.back());
    row.expanded.pop_back();
    return row;
  }
  if (row.expanded_left_out > 0) return row;
  row.masked_by_data =
      !row.history_rewritten && !parts.empty() &&
      std::all_of(parts.begin(), parts.end(), [](const WeightedRange& range) { return range.weight == 0; });
  row.nothing_learnt = row.history_rewritten ? "the template renders every supervised answer differently "
                                               "once more messages follow (history_rewrites: mask)"
                                             : why_nothing_is_learnt(chat, row.masked_by_data);
  return row;
}

}  // namespace hone
