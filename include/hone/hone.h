/* libhone: Hone in the process of another program. C, version 1 of the interface.
 *
 * Settings and results are JSON objects, in UTF-8. A setting is a key of a configuration (docs/config.md) or an option of
 * the verb with underscores ("max_samples" is --max-samples); "config" names a file. Functions return 0, or fill `error`,
 * which hone_error_free() frees; texts they return are freed by hone_text_free(). No exception leaves the library, and
 * nothing is printed: what a verb would print goes to on_log.
 *
 * Except for experts, one call at a time: another thread waits, and a callback must not call, except hone_stop(). While a call runs, SIGPIPE
 * is ignored, and during training SIGINT, SIGTERM, SIGHUP and SIGUSR1/2 save and stop as in the program. */
#ifndef HONE_HONE_H
#define HONE_HONE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HONE_API __attribute__((visibility("default")))
#else
#define HONE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hone_error hone_error;
typedef struct hone_model hone_model;
typedef struct hone_experts hone_experts;

/* Receives what happens during a call, on the caller's thread or another, one at a time. Members may be null; `text` is
 * valid during the call only. */
typedef struct hone_listener {
  void* user;                                                  /* first argument of all functions */
  void (*on_log)(void* user, const char* text);                /* whole lines and parts of them */
  int (*on_metrics)(void* user, const char* row);              /* a row of metrics.jsonl; not 0: save and stop */
  int (*on_text)(void* user, int64_t sequence, const char* text); /* of an answer; not 0: end the generation */
} hone_listener;

/* "0.2.0" */
HONE_API const char* hone_version(void);

/* What went wrong, where (a file and line, a key; may be ""), how to mend it (may be ""), and the program's exit code. */
HONE_API const char* hone_error_message(const hone_error* error);
HONE_API const char* hone_error_where(const hone_error* error);
HONE_API const char* hone_error_fix(const hone_error* error);
HONE_API int hone_error_code(const hone_error* error);
HONE_API void hone_error_free(hone_error* error);
HONE_API void hone_text_free(char* text);

/* hone estimate. `result`: what `hone estimate --json` prints. */
HONE_API int hone_plan(const char* settings, const hone_listener* listener, char** result, hone_error** error);

/* hone train. `result`: {"stopped": whether it was asked to stop and can be resumed, "output_dir", "last": the last row
 * of metrics}. */
HONE_API int hone_train(const char* settings, const hone_listener* listener, char** result, hone_error** error);

/* hone eval. `result`: what `hone eval --json` prints. */
HONE_API int hone_evaluate(const char* settings, const hone_listener* listener, char** result, hone_error** error);

/* hone merge. */
HONE_API int hone_merge(const char* settings, const hone_listener* listener, hone_error** error);

/* Asks the running call to stop: training saves first, generation returns what there is. From any thread, a callback or a
 * signal handler. */
HONE_API void hone_stop(void);

/* A model in memory that generates. Settings: options of hone generate that say which model and where it is (model,
 * adapter, dtype, device, …) and "max_length", the tokens of the longest prompt and answer (default 4096, at most the
 * model's context), and "max_sequences", how many are answered at once (default 16). */
HONE_API int hone_model_open(const char* settings, const hone_listener* listener, hone_model** model, hone_error** error);
/* `request`: {"prompts": [text | [{"role", "content"}, …] | {"messages", "tools", …}, …], "raw": false, and options of
 * sampling}. A text is a user's message, with raw the beginning of a text. `result`: {"answers": [{"text",
 * "finish_reason", "prompt_tokens", "generated_tokens"}, …]} in the order of the prompts. */
HONE_API int hone_model_generate(hone_model* model, const char* request, const hone_listener* listener, char** result,
                                 hone_error** error);
HONE_API void hone_model_free(hone_model* model);

/* The routed experts of one layer on the CPU: what a mixture-of-experts block of the caller does after its router.
 *   out[t] = sum over j of weights[t, j] * down_e (silu(gate_e x[t]) * up_e x[t]),   e = ids[t, j]
 * with LoRA of gate, up and down where it is stated. Frozen weights are kept in any format; a backward pass gives the
 * gradients of x, of weights and of adapters. Objects may be used beside calls of the functions above; one object by one
 * thread at a time. All memory is the host's, row by row.
 *
 * Settings: "experts" (E), "hidden" (H), "intermediate" (I); "dtype" of x, out and of weights that are set, "bfloat16"
 * (default) or "float32"; "weight_dtype", how weights are kept: "dtype" (default), "int8", "int4", "int4_128", "nf4",
 * "fp8" or "mxfp4"; "lora_r" (default 0: none), "lora_alpha" (default 2 r); "threads" (default 0: all cores), which
 * objects with the same number share. */
HONE_API int hone_experts_create(const char* settings, hone_experts** experts, hone_error** error);
HONE_API void hone_experts_free(hone_experts* experts);
/* Sets the weights of an expert, all of which are zero at first: gate and up [I, H], down [H, I]. */
HONE_API int hone_experts_set(hone_experts* experts, int64_t expert, const void* gate, const void* up, const void* down,
                              hone_error** error);
/* A float32 tensor in the object's memory, to be written by the caller (an optimizer) after hone_experts_sync(), zero at
 * first: "gate.lora_a" [E, r, H], "gate.lora_b" [E, I, r], the same of up, "down.lora_a" [E, r, I], "down.lora_b"
 * [E, H, r], and their gradients, "gate.lora_a.grad" and so on. `shape` gets three numbers. */
HONE_API int hone_experts_tensor(hone_experts* experts, const char* name, float** data, int64_t* shape, hone_error** error);
/* Backward adds to the gradients of adapters until this sets them to zero. */
HONE_API int hone_experts_zero_grad(hone_experts* experts, hone_error** error);
/* Queue a pass and return: x, out, dout, dx [tokens, H] and dweights must stay until hone_experts_sync(), which waits and
 * reports what has failed; ids [tokens, choices] and weights, float32 of the same shape, are read at once. A backward
 * pass follows the last forward pass with `training`, once; dx and dweights (float32) may be null. */
HONE_API int hone_experts_forward(hone_experts* experts, int64_t tokens, int64_t choices, const void* x,
                                  const int64_t* ids, const float* weights, void* out, int training, hone_error** error);
HONE_API int hone_experts_backward(hone_experts* experts, const void* dout, void* dx, float* dweights,
                                   hone_error** error);
HONE_API int hone_experts_sync(hone_experts* experts, hone_error** error);

#ifdef __cplusplus
}
#endif

#endif
