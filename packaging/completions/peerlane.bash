# SPDX-License-Identifier: Apache-2.0
# bash completion of peerlane. The program itself knows the words: `peerlane __complete WORD...` prints those that fit the last one.
_peerlane() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    COMPREPLY+=("${line%%$'\t'*}")
  done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o bashdefault -o default -F _peerlane peerlane
