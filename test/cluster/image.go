package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"sort"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The two images that every cluster has.
const (
	pauseImage   = "localhost/pause:1"
	busyboxImage = "localhost/busybox:1.36"
)

// imageSpec is an image of one layer.
type imageSpec struct {
	name       string            // with a tag other than latest
	files      map[string]string // path in the image -> file of this machine
	links      map[string]string // path in the image -> target
	texts      map[string]string // path in the image -> content
	folders    map[string]int64  // path in the image -> mode, for folders that are more than parents
	user       string
	entrypoint []string
	cmd        []string
	env        []string
}

// parseTag accepts a name that the kubelet will not try to pull again.
func parseTag(image string) (name.Tag, error) {
	tag, err := name.NewTag(image)
	if err != nil {
		return name.Tag{}, usagef("image %q: %w", image, err)
	}
	if !strings.HasSuffix(image, ":"+tag.TagStr()) || tag.TagStr() == "latest" {
		return name.Tag{}, usagef("image %q: give it a tag other than latest, such as %s:dev; a node pulls latest from a registry, and there is none", image, strings.TrimSuffix(image, ":latest"))
	}
	return tag, nil
}

// writeImage writes the image as an archive that "ctr images import" reads. The same
// files give the same image.
func writeImage(spec imageSpec, out io.Writer) error {
	tag, err := parseTag(spec.name)
	if err != nil {
		return err
	}
	layer, err := buildLayer(spec)
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.name, err)
	}
	packed, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, packed)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config = v1.Config{User: spec.user, Entrypoint: spec.entrypoint, Cmd: spec.cmd, Env: spec.env}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	return tarball.Write(tag, image, out)
}

// buildLayer packs files, links and the folders above them, in order of their paths.
func buildLayer(spec imageSpec) ([]byte, error) {
	entries := map[string]tar.Header{}
	content := map[string][]byte{}
	add := func(where string, h tar.Header, data []byte) error {
		clean := strings.TrimPrefix(path.Clean("/"+where), "/")
		if clean == "" {
			return fmt.Errorf("path %q: must name a file below /", where)
		}
		for dir := path.Dir(clean); dir != "."; dir = path.Dir(dir) {
			if _, ok := entries[dir+"/"]; !ok {
				entries[dir+"/"] = tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}
			}
		}
		if h.Typeflag == tar.TypeDir {
			clean += "/"
		}
		h.Size = int64(len(data))
		entries[clean], content[clean] = h, data
		return nil
	}
	for where, mode := range spec.folders {
		if err := add(where, tar.Header{Typeflag: tar.TypeDir, Mode: mode}, nil); err != nil {
			return nil, err
		}
	}
	for where, text := range spec.texts {
		if err := add(where, tar.Header{Typeflag: tar.TypeReg, Mode: 0o644}, []byte(text)); err != nil {
			return nil, err
		}
	}
	for where, target := range spec.links {
		if err := add(where, tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target}, nil); err != nil {
			return nil, err
		}
	}
	for where, file := range spec.files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if interpreter := needsInterpreter(data); interpreter != "" && spec.files[interpreter] == "" {
			return nil, fmt.Errorf("%s needs shared libraries (it is run by %s, which the image lacks): build it with CGO_ENABLED=0", file, interpreter)
		}
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		mode := int64(0o644) // whatever the umask of the build was
		if info.Mode()&0o111 != 0 {
			mode = 0o755
		}
		if err := add(where, tar.Header{Typeflag: tar.TypeReg, Mode: mode}, data); err != nil {
			return nil, err
		}
	}
	names := make([]string, 0, len(entries))
	for n := range entries {
		names = append(names, n)
	}
	sort.Strings(names)
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, n := range names {
		h := entries[n]
		h.Name = n
		if err := w.WriteHeader(&h); err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
		if _, err := w.Write(content[n]); err != nil {
			return nil, fmt.Errorf("%s: %w", n, err)
		}
	}
	return buf.Bytes(), w.Close()
}

// addBusybox puts Debian's static busybox into an image, with all of its applets.
func addBusybox(ctx context.Context, spec *imageSpec) error {
	busybox, err := findProgram("busybox")
	if err != nil {
		return err
	}
	list, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox --list: %w", err)
	}
	if spec.files == nil {
		spec.files = map[string]string{}
	}
	spec.files["/bin/busybox"] = busybox
	spec.links = map[string]string{}
	for _, applet := range strings.Fields(string(list)) {
		if applet != "busybox" {
			spec.links["/bin/"+applet] = "/bin/busybox"
		}
	}
	spec.folders = map[string]int64{"/tmp": 0o1777, "/root": 0o700, "/var": 0o755}
	spec.texts = map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":  "root:x:0:\nnogroup:x:65534:\n",
	}
	return nil
}

func baseImages(ctx context.Context, l layout) ([]imageSpec, error) {
	busybox := imageSpec{name: busyboxImage, cmd: []string{"/bin/sh"}, env: []string{"PATH=/bin"}}
	if err := addBusybox(ctx, &busybox); err != nil {
		return nil, err
	}
	pause := imageSpec{name: pauseImage, files: map[string]string{"/pause": l.program("pause")}, entrypoint: []string{"/pause"}, user: "65535:65535"}
	return []imageSpec{pause, busybox}, nil
}

// loadImage builds an image and gives it to the node.
func loadImage(ctx context.Context, l layout, spec imageSpec) error {
	f, err := os.CreateTemp(l.state, "image-*.tar")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	if err := writeImage(spec, f); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return importArchive(ctx, l, f.Name())
}

// importArchive gives the node every image of an archive (docker save or OCI layout).
func importArchive(ctx context.Context, l layout, file string) error {
	out, err := exec.CommandContext(ctx, l.program("ctr"), "--address", l.containerdSocket(), "--namespace", "k8s.io",
		"images", "import", file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("import %s into the node: %w\n%s", filepath.Base(file), err, bytes.TrimSpace(out))
	}
	return nil
}
