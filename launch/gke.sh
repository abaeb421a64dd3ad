#!/usr/bin/env bash
# A training on TPU slices of a GKE cluster that has JobSet: renders the JobSet and hands it to kubectl.
#   bash launch/gke.sh --name=run1 --image=REGISTRY/ptmjax:tpu --accelerator=tpu-v6e-slice --topology=4x4 --slices=2 -- \
#     --gin_file=t5_base.gin --workdir=gs://bucket/run1 --gin.Experiment.mesh='"data=-1,fsdp=16"'
# --name=NAME          of the JobSet; `kubectl delete jobset NAME` stops it, after a step that is saved
# --image=IMAGE        docker build -f launch/Dockerfile --target tpu -t IMAGE . && docker push IMAGE
# --accelerator=NAME --topology=AxB[xC]   of a slice, as the node pool's labels gke-tpu-accelerator and gke-tpu-topology say: AxB of
#                      tpu-v5-lite-podslice and tpu-v6e-slice, AxBxC of tpu-v4-podslice, tpu-v5p-slice and tpu7x
# --slices=N           how many (1); several are joined by GKE's MEGASCALE_... variables, which jax reads
# --chips=N            of a node (4)
# --bucket=NAME        is mounted at /bucket, for --cache=/bucket/cache (needs the cluster's GCS FUSE driver)
# --account=NAME       the Kubernetes service account whose rights to buckets the pods have (default)
# --restarts=N         how often the set is restarted at most (100): a pod that is lost, or SIGTERM after a save, restarts all of it;
#                      a fault of its user (code 2) or of the code (1) ends it
# --grace=S            seconds that a pod has after SIGTERM for its save (120)
# --dry_run            print the JobSet and hand over nothing
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=launch/launching.sh
source "$here/launching.sh"
name="" image="" accelerator="" topology="" slices=1 chips=4 bucket="" account=default restarts=100 grace=120
given "name image accelerator topology slices chips bucket account restarts grace" "$@"
needed name image accelerator topology
counted slices chips restarts grace
[[ $name =~ ^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$ ]] || fault "--name=$name: give at most 40 of a-z, 0-9 and -, a letter first"
case $accelerator in
  tpu-v5-lite-podslice | tpu-v6e-slice) axes=AxB ;;
  tpu-v4-podslice | tpu-v5p-slice | tpu7x) axes=AxBxC ;;
  *) fault "--accelerator=$accelerator: it is tpu-v4-podslice, tpu-v5-lite-podslice, tpu-v5p-slice, tpu-v6e-slice or tpu7x; for another, name one of these with --dry_run and edit what it prints" ;;
esac
[[ $topology =~ ^${axes//[A-C]/[1-9][0-9]{0,2\}}$ ]] || fault "--topology=$topology is not $axes, as $accelerator has it" # a product of these fits
nodes=$((${topology//x/*} / chips))
[ $((nodes * chips)) -eq $((${topology//x/*})) ] || fault "--topology=$topology has $((${topology//x/*})) chips, no multiple of --chips=$chips a node"
[[ $image =~ ^[[:alnum:]][-_.:/@[:alnum:]]*$ ]] || fault "--image=$image is no name of an image"
[[ $account =~ ^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$ ]] || fault "--account=$account is no name of a service account: of a-z, 0-9, - and ."
[[ -z $bucket || $bucket =~ ^[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]$ ]] || fault "--bucket=$bucket: give the bare name, of a-z, 0-9, -, _ and ."
named_workdir
[[ $workdir == gs://?* || (-n $bucket && $workdir == /bucket/?*) ]] ||
  fault "--workdir=gs://... is missing behind -- (or /bucket/... with --bucket): the pods have no other folder in common"
[[ "${arguments[*]}" != *[[:cntrl:]]* ]] || fault "an argument holds a line break or another control character"

# json WORD...: the words as JSON strings with commas between. Kubernetes reads $(NAME) in arguments as a variable, unless $ is doubled.
json() {
  local word comma=""
  for word in "$@"; do
    word=${word//\\/\\\\}
    word=${word//\"/\\\"}
    printf '%s"%s"' "$comma" "${word//\$/\$\$}"
    comma=", "
  done
}

mounts='' volumes='' annotations='{}'
if [ -n "$bucket" ]; then
  annotations='{"gke-gcsfuse/volumes": "true"}'
  mounts=', {"name": "bucket", "mountPath": "/bucket"}'
  volumes=", {\"name\": \"bucket\", \"csi\": {\"driver\": \"gcsfuse.csi.storage.gke.io\", \"volumeAttributes\": {\"bucketName\": $(json "$bucket")}}}"
fi

# backoffLimit 0: the first pod that ends badly ends its Job, and a Job that ends restarts the set, unless the pod's code says otherwise.
rendered() {
  cat <<END
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata:
  name: "$name"
  annotations:
    alpha.jobset.sigs.k8s.io/exclusive-topology: cloud.google.com/gke-nodepool
spec:
  failurePolicy:
    maxRestarts: $restarts
    rules:
      - name: fault
        action: FailJobSet
        onJobFailureReasons: [PodFailurePolicy]
  replicatedJobs:
    - name: slice
      replicas: $slices
      template:
        spec:
          parallelism: $nodes
          completions: $nodes
          completionMode: Indexed
          backoffLimit: 0
          podFailurePolicy:
            rules:
              - action: FailJob
                onExitCodes: {containerName: ptmjax, operator: In, values: [1, 2]}
          template:
            metadata:
              annotations: $annotations
            spec:
              restartPolicy: Never
              terminationGracePeriodSeconds: $grace
              serviceAccountName: $(json "$account")
              hostNetwork: true
              dnsPolicy: ClusterFirstWithHostNet
              nodeSelector:
                cloud.google.com/gke-tpu-accelerator: $(json "$accelerator")
                cloud.google.com/gke-tpu-topology: $topology
              containers:
                - name: ptmjax
                  image: $(json "$image")
                  args: [$(json train --distributed "${arguments[@]}")]
                  securityContext: {runAsUser: 0} # the TPU's device files are root's
                  env: [{name: PTMJAX_CACHE, value: /cache}]
                  resources: {limits: {google.com/tpu: $chips}}
                  volumeMounts: [{"name": "cache", "mountPath": "/cache"}, {"name": "memory", "mountPath": "/dev/shm"}$mounts]
              volumes: [{"name": "cache", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory"}}$volumes]
END
}

jobset=$(rendered)
if $dry_run; then
  printf '%s\n' "$jobset"
else
  runnable kubectl
  kubectl apply --filename=- <<<"$jobset"
fi
