#!/bin/bash
# First process of a node: in its own mount, network and process namespaces. When it dies, the node is gone.
# From node.py: NODE_FOLDER NODE_IP NODE_PREFIX HUB OTHER_NODES (POD_CIDR=NODE_IP ...) API_READY (a file)
# CONTAINERD CTR KUBELET KUBE_PROXY (programs) KUBELET_FLAGS
set -euo pipefail

# Own folders at the default places, so that nothing of three nodes meets and nothing is mounted on the host.
mount --make-rshared /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
mount --bind "$NODE_FOLDER/kubelet" /var/lib/kubelet
mount --bind "$NODE_FOLDER/log" /var/log
mount --bind "$NODE_FOLDER/cni" /var/lib/cni
# The node's private disk, at the same path on each node.
mount -t tmpfs -o mode=0755 tmpfs /mnt
mkdir /mnt/node
mount --bind "$NODE_FOLDER/files" /mnt/node

ip link set lo up
for _ in $(seq 200); do ip link show eth0 >/dev/null 2>&1 && break; sleep 0.05; done
ip addr add "$NODE_IP/$NODE_PREFIX" dev eth0
ip link set eth0 up
ip route add default via "$HUB"
for other in $OTHER_NODES; do ip route add "${other%=*}" via "${other#*=}"; done
sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1

cd "$NODE_FOLDER"
rm -f containerd.sock*
"$CONTAINERD" -c containerd.toml >>log/containerd.log 2>&1 &
for _ in $(seq 200); do
  [ -S containerd.sock ] && "$CTR" -a "$NODE_FOLDER/containerd.sock" version >/dev/null 2>&1 && break
  sleep 0.1
done
for image in images/*.tar; do
  [ -e "$image" ] && "$CTR" -a "$NODE_FOLDER/containerd.sock" -n k8s.io image import --local "$image" >>log/images.log 2>&1
done

for _ in $(seq 1200); do [ -e "$API_READY" ] && break; sleep 0.05; done
# As systemd would: a kubelet that ends is started again.
(while :; do
  # shellcheck disable=SC2086
  "$KUBELET" $KUBELET_FLAGS >>log/kubelet.log 2>&1 || true
  sleep 1
done) &
# It ends when its Node is deleted; in the field its DaemonSet brings it back.
(while :; do
  "$KUBE_PROXY" --config=proxy.yaml >>log/kube-proxy.log 2>&1 || true
  sleep 1
done) &

trap 'exit 0' TERM
while :; do wait -n 2>/dev/null || sleep 1; done
