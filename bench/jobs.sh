# Jobs of a benchmark that may be cut off: sourced with `folder`, where results go; `until`, when the call ends in SECONDS;
# `only`, a pattern of names or nothing; `bin`, the folder of hone; and `device`. Each job leaves FOLDER/NAME.txt with its
# command, output, exit code and seconds.
# A job whose file exists is not run again, so that a call may end at any time and another goes on.
# job NAME LIMIT COMMAND...: at most LIMIT seconds
job() {
  local name=$1 limit=$2 file=$folder/$1.txt left=$((until - SECONDS)) begin=$SECONDS
  shift 2
  [[ -z $only || $name =~ $only ]] || return 0
  if [ -e "$file" ]; then return 0; fi
  if ((left < 20)); then return 0; fi
  echo "# $*" > "$file.part"
  # A job cut off by the end of the call runs again in the next one; one that reaches its own limit does not.
  timeout -k 10 "$((limit < left ? limit : left))" bash -c '"$@"' - "$@" >> "$file.part" 2>&1
  local code=$?
  echo "# exit code $code, $((SECONDS - begin)) s" >> "$file.part"
  if ((code == 124 || code == 137)) && ((left <= limit)); then return 0; fi
  mv "$file.part" "$file"
  echo "$name: exit code $code, $((SECONDS - begin)) s; $(grep -oE '^  (tokens a second( and rank)?|of one rank alone) +.*' "$file" | tr -s ' ' | tr '\n' ',')"
}
# step NAME LIMIT OPTIONS...: a measured step of what the array `hone` runs
step() {
  local name=$1 limit=$2
  shift 2
  job "$name" "$limit" "${hone[@]}" bench step --device "$device" --warmup 2 --steps 5 --json "$folder/$name.json" "$@"
}
# The quickstart's model and data in FOLDER/small
small() {
  [ -e "$folder/small/act1.yaml" ] || "$bin/hone" quickstart --output "$folder/small" --english-steps 1 --german-steps 1
  [ -e "$folder/small/act1.yaml" ]
}
# The run of act 1 of the quickstart whose losses are compared, for hone or a launcher: quickstart_run OUTPUT
quickstart_run() {
  echo "train $folder/small/act1.yaml output_dir=$1 device=$device val_split=0 eval_strategy=no eval_steps=null" \
    "global_batch_size=32 per_device_train_batch_size=4 gradient_accumulation_steps=null lr_scheduler_type=constant warmup_ratio=0" \
    "min_lr_ratio=0 logging_steps=1"
}
# The losses of a run, a line each, and how many there are so far: OUTPUT
losses() { grep -oE '"loss":[0-9.e-]+' "$1/metrics.jsonl" | cut -d: -f2; }
steps_of() { if [ -e "$1/metrics.jsonl" ]; then losses "$1" | grep -c .; else echo 0; fi; }
export -f small quickstart_run losses steps_of
