#!/usr/bin/env bash
# A real Slurm on this machine alone: one node, one partition, no accounts; every port on loopback.
#
#   tests/cluster/one_node_slurm.sh start FOLDER    prints the one line that Slurm's commands need: export SLURM_CONF=...
#   tests/cluster/one_node_slurm.sh stop FOLDER     ends its jobs and its daemons
#
# Needs the packages slurm-wlm and munge (tried with Slurm 22.05), and root, as whom its jobs run. All that it writes lies
# in FOLDER, its key included: a Slurm or a munge that this machine may have is left alone.
set -euo pipefail

if [ $# -ne 2 ]; then
    echo "usage: one_node_slurm.sh start|stop FOLDER" >&2
    exit 2
fi
mkdir -p "$2"
folder=$(cd "$2" && pwd)
export SLURM_CONF=$folder/slurm.conf
controller_port=${CONTROLLER_PORT:-26817}
node_port=${NODE_PORT:-26818}

fail() {
    echo "error: $1" >&2
    exit 1
}

need() {
    [ "$(id -u)" -eq 0 ] || fail "slurmd starts jobs as root alone; run this as root"
    for program in munged slurmctld slurmd sinfo; do
        command -v "$program" > /dev/null || fail "$program is missing; apt-get install slurm-wlm munge"
    done
}

# Who may ask: whoever has this key, which is made anew for each Slurm.
start_munge() {
    head -c 1024 /dev/urandom > "$folder/munge.key"
    chmod 400 "$folder/munge.key"
    munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
        --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
}

write_configuration() {
    local host cores memory
    host=$(hostname -s)
    cores=$(getconf _NPROCESSORS_ONLN) # nproc would say OMP_NUM_THREADS
    memory=$(awk '/MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)
    cat > "$SLURM_CONF" << CONF
ClusterName=alone
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$node_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=1,sched_interval=2
# A job whose node is gone is put in line again, and a node that answers again takes jobs.
JobRequeue=1
ReturnToService=2
SlurmdTimeout=30
KillWait=10
MinJobAge=300
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
}

wait_for_node() {
    for _ in $(seq 60); do
        if sinfo --noheader --states=idle 2> /dev/null | grep -q .; then
            return
        fi
        sleep 0.5
    done
    tail -n 5 "$folder"/slurm*.log >&2
    fail "the node is not idle after 30 s"
}

start() {
    need
    mkdir -p "$folder/state" "$folder/spool"
    start_munge
    write_configuration
    slurmctld
    slurmd
    wait_for_node
    echo "export SLURM_CONF=$SLURM_CONF"
}

# End a daemon by the process number that it has noted, and wait until it is gone.
end() {
    local file=$folder/$1.pid pid
    [ -s "$file" ] || return 0
    pid=$(cat "$file")
    kill "$pid" 2> /dev/null || return 0
    for _ in $(seq 50); do
        kill -0 "$pid" 2> /dev/null || return 0
        sleep 0.2
    done
    kill -KILL "$pid" 2> /dev/null || true
}

stop() {
    if [ -s "$folder/slurmctld.pid" ]; then
        scancel --full --user root 2> /dev/null || true
        for _ in $(seq 30); do
            squeue --noheader 2> /dev/null | grep -q . || break
            sleep 0.5
        done
    fi
    end slurmd
    end slurmctld
    end munged
}

case $1 in
    start | stop) "$1" ;;
    *) fail "$1 is neither start nor stop" ;;
esac
