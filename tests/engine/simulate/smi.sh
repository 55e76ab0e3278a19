# shellcheck shell=sh disable=SC2154
# The working part of the simulated nvidia-smi, the same for every host. smi.py puts one host's data before it:
#   gpus, apps                                         names of the functions that know a row's cells
#   gpu_N KEY, app_N KEY                               set value to a cell
#   valid_gpu, valid_remapped_rows, valid_compute_apps FIELD      whether a field may be asked
#   key_of FIELD, unit_of KEY                          set key, set unit
#   gpu_named NAME                                     adds the row of an index, UUID or bus id to chosen_gpus
#   answer_all, answer_query, answer_list, answer_version, answer_nvlink, answer_table    say something and end, or do nothing

# Text with \n and octal escapes, exit status. Everything goes to stdout, as with the real one.
say() {
    printf %b "$1"
    exit "$2"
}

now() { date '+%Y/%m/%d %H:%M:%S.000'; }

# The function that knows the fields, names of the rows. Uses question, fields, format.
query() {
    IFS=', '
    for field in $fields; do
        "$1" "$field" || say "Field \"$field\" is not a valid field to query.\n\n" 2
    done
    case $format in
        *,noheader,*) ;;
        *)
            line=
            for field in $fields; do
                key_of "$field"
                unit_of "$key"
                # --query-gpu heads a column with the field's first name, the other queries with the name asked for.
                case $question in --query-gpu) head=$key ;; *) head=$field ;; esac
                case $format in *,nounits,*) ;; *) head="$head${unit:+ [$unit]}" ;; esac
                line="$line${line:+, }$head"
            done
            printf '%s\n' "$line"
            ;;
    esac
    IFS=' '
    for row in $2; do
        IFS=', '
        line=
        for field in $fields; do
            key_of "$field"
            "$row" "$key"
            unit_of "$key"
            case $format:$value in *,nounits,*:* | *:\[* | *:N/A) unit= ;; esac
            line="$line${line:+, }$value${unit:+ $unit}"
        done
        printf '%s\n' "$line"
        IFS=' '
    done
    exit 0
}

set -f # fields are no file patterns
answer_all
question=table fields='' format='' chosen=''
while [ $# -gt 0 ]; do
    case $1 in
        --query-*=*) question=${1%%=*} fields=${1#*=} ;;
        --query-*) question=$1 fields=${2-} && shift ;;
        --format=*) format=,${1#*=}, ;;
        -i | --id) chosen=${2-} && shift ;;
        -i=* | --id=*) chosen=${1#*=} ;;
        -L | --list-gpus) question=list ;;
        --version) question=version ;;
        --help-query-gpu) question=help ;;
        nvlink)
            case ${2-} in
                -s | --status) question=nvlink && shift ;;
                *) say "torchtap simulation: nvlink ${2-} is not simulated\n" 255 ;;
            esac
            ;;
        -q | -x | -l | topo | mig | dmon | pmon) say "torchtap simulation: $1 is not simulated\n" 255 ;;
        *) say "ERROR: Option $1 is not recognized. Please run 'nvidia-smi -h'.\n\n" 255 ;;
    esac
    [ $# -gt 0 ] && shift
done

if [ -n "$chosen" ]; then
    case $question in
        --query-*) ;;
        *) say "torchtap simulation: -i without a query is not simulated\n" 255 ;;
    esac
    chosen_gpus=
    IFS=,
    for name in $chosen; do gpu_named "$name"; done
    gpus=${chosen_gpus:-}
    [ -n "$gpus" ] || say 'No devices were found\n' 6
fi

case $question in
    --query-gpu)
        answer_query
        query valid_gpu "$gpus"
        ;;
    --query-remapped-rows) query valid_remapped_rows "$gpus" ;;
    --query-compute-apps) query valid_compute_apps "$apps" ;;
    --query-*) say "ERROR: Option $question is not recognized. Please run 'nvidia-smi -h'.\n\n" 255 ;;
    help) answer_help ;;
    list) answer_list ;;
    version) answer_version ;;
    nvlink) answer_nvlink ;;
    table) answer_table ;;
esac
