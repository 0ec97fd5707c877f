package guard

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// stateFile is the one file of the state directory.
const stateFile = "state.json"

// Store keeps what must survive a restart of the guard in a directory that no
// worker sees: the saved state, the pod's token and the port of the local endpoint.
// It is not safe for concurrent use.
type Store struct {
	path string
	kept kept
}

type kept struct {
	Token string `json:"token"`
	Port  int    `json:"port,omitempty"`
	Saved *Saved `json:"saved,omitempty"`
}

// OpenStore reads the directory's state, or begins one with a random token. A file
// that cannot be read as state is put aside and told in warning: its attempt is
// then left to end by its lease, which is safe.
func OpenStore(dir string) (st *Store, warning error, err error) {
	st = &Store{path: filepath.Join(dir, stateFile)}
	b, err := os.ReadFile(st.path)
	switch {
	case err == nil:
		if err = json.Unmarshal(b, &st.kept); err == nil && st.kept.Token != "" {
			return st, nil, nil
		}
		warning = fmt.Errorf("state file %s is damaged and was put aside: %w", st.path, errors.Join(err, os.Rename(st.path, st.path+".bad")))
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("read the guard's state: %w", err)
	}
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return nil, nil, err
	}
	st.kept = kept{Token: hex.EncodeToString(secret)}
	return st, warning, st.write()
}

// Token is the pod's bearer token.
func (st *Store) Token() string { return st.kept.Token }

// Port of the local endpoint, 0 when none was chosen yet.
func (st *Store) Port() int { return st.kept.Port }

// SetPort keeps the port for the next guard of this pod.
func (st *Store) SetPort(port int) error {
	st.kept.Port = port
	return st.write()
}

// Saved gives what an earlier guard of this pod saved, nil for the first one.
func (st *Store) Saved() *Saved { return st.kept.Saved }

// Save writes the state so that a crash at any instant leaves the old or the new.
func (st *Store) Save(s Saved) error {
	st.kept.Saved = &s
	return st.write()
}

func (st *Store) write() error {
	b, err := json.Marshal(st.kept)
	if err != nil {
		return err
	}
	dir := filepath.Dir(st.path)
	f, err := os.CreateTemp(dir, stateFile+".*") // mode 0600
	if err != nil {
		return fmt.Errorf("write the guard's state: %w", err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), st.path)
	}
	if err != nil {
		return fmt.Errorf("write the guard's state: %w", errors.Join(err, os.Remove(f.Name())))
	}
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write the guard's state: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}
