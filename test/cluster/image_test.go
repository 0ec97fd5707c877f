package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func TestImageHoldsWhatWasAskedFor(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	spec := imageSpec{
		name: "localhost/x:1", files: map[string]string{"/opt/app/run": program}, links: map[string]string{"/run": "/opt/app/run"},
		folders: map[string]int64{"/tmp": 0o1777}, user: "65532:65532", entrypoint: []string{"/opt/app/run"}, cmd: []string{"a b"}, env: []string{"PATH=/bin"},
	}
	var out, again bytes.Buffer
	if err := errors.Join(writeImage(spec, &out), writeImage(spec, &again)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same files gave two different images")
	}
	image, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if c := config.Config; c.User != spec.user || !slices.Equal(c.Entrypoint, spec.entrypoint) || !slices.Equal(c.Cmd, spec.cmd) || !slices.Equal(c.Env, spec.env) || config.OS != "linux" {
		t.Errorf("config %+v of %s", c, config.OS)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname)
	}
	want := []string{"drwxr-xr-x opt/ ", "drwxr-xr-x opt/app/ ", "-rwxr-xr-x opt/app/run ", "Lrwxrwxrwx run /opt/app/run", "dtrwxrwxrwx tmp/ "}
	if !slices.Equal(got, want) {
		t.Errorf("layer %q, want %q", got, want)
	}
}

func TestImagesThatCouldNotRunAreRefused(t *testing.T) {
	for _, name := range []string{"x", "x:latest", "X:1", "localhost/x@sha256:1"} {
		var usage usageError
		if _, err := parseImage([]string{name}); !errors.As(err, &usage) {
			t.Errorf("image %q: %v", name, err)
		}
	}
	for _, file := range []string{"x", "x=y", "/x=", "/x"} {
		var usage usageError
		if _, err := parseImage([]string{"x:1", file}); !errors.As(err, &usage) {
			t.Errorf("file %q: %v", file, err)
		}
	}
	dynamic, err := os.ReadFile("/bin/ls")
	if err != nil || needsInterpreter(dynamic) == "" {
		t.Skip("no dynamic program here")
	}
	if err := writeImage(imageSpec{name: "x:1", files: map[string]string{"/ls": "/bin/ls"}}, io.Discard); err == nil {
		t.Error("a program whose libraries are missing was packed")
	}
}

func TestWords(t *testing.T) {
	for in, want := range map[string][]string{"": nil, "/a b": {"/a b"}, `["/a","b c"]`: {"/a", "b c"}} {
		if got, err := words("--entrypoint", in); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
	if _, err := words("--entrypoint", "[a"); err == nil {
		t.Error("[a was accepted")
	}
}
