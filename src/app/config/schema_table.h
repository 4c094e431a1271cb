// The parts of the schema's table, one file each; schema.cpp puts them together.
#pragma once

#include <vector>

#include "app/config/schema.h"

namespace hone {

void add_model_keys(std::vector<KeySpec>& table);    ///< model, method, LoRA, router, precision, parallelism
void add_data_keys(std::vector<KeySpec>& table);     ///< data sets, length, packing, templates
void add_train_keys(std::vector<KeySpec>& table);    ///< schedule, batch, optimizer, machine
void add_run_keys(std::vector<KeySpec>& table);      ///< output, checkpoints, evaluation, generation
void add_foreign_keys(std::vector<KeySpec>& table);  ///< what only other systems have
void add_ignored_keys(std::vector<KeySpec>& table);  ///< recognised, no effect
void add_dataset_keys(std::vector<KeySpec>& table);  ///< one entry of datasets

}  // namespace hone
