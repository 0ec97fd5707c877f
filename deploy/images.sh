#!/bin/sh
# Builds the two images from the programs in dist/: deploy/images.sh PREFIX TAG ARCH
#
# ENGINE chooses docker, podman or buildah; otherwise the first that works is taken.
# Nothing is fetched: the images begin from scratch. ARCHIVES=DIRECTORY also writes
# each image as a docker archive there, to be loaded into a cluster without registry.
set -eu
cd "$(dirname "$0")/.."
prefix=$1 tag=$2 arch=$3
archives=${ARCHIVES-}

engine=${ENGINE-}
if [ -z "$engine" ]; then
  if docker info >/dev/null 2>&1; then
    engine=docker
  elif podman info >/dev/null 2>&1; then
    engine=podman
  elif command -v buildah >/dev/null; then
    engine=buildah
  else
    echo "images: no docker engine answers, and neither podman nor buildah is installed." >&2
    echo "images: start docker, or install one (Debian: apt-get install buildah), or name one by ENGINE=…" >&2
    exit 1
  fi
fi

build() { # build NAME DOCKERFILE
  image=$prefix$1:$tag
  echo "building $image with $engine" >&2
  # Both spellings of the platform's name: older engines set TARGETARCH only by --build-arg.
  case $engine in
  *docker) "$engine" build --platform "linux/$arch" --build-arg "TARGETARCH=$arch" -f "$2" -t "$image" . ;;
  # No RUN in our files, so chroot is all the isolation there is to ask for, and it
  # also works inside a container.
  *) "$engine" build --isolation "${BUILDAH_ISOLATION:-chroot}" --platform "linux/$arch" --build-arg "TARGETARCH=$arch" -f "$2" -t "$image" . ;;
  esac
  if [ -n "$archives" ]; then
    mkdir -p "$archives"
    rm -f "$archives/$1.tar"
    case $engine in
    *buildah) "$engine" push "$image" "docker-archive:$archives/$1.tar:$image" ;;
    *) "$engine" save -o "$archives/$1.tar" "$image" ;;
    esac
  fi
}

build onceguard-guard Dockerfile.guard
build onceguard-webhook Dockerfile.webhook
