package main

import (
	"context"
	"fmt"
	"net/url"
)

func (b *bench) findPostmaster(ctx context.Context) (pid int, err error) {
	err = b.admin.QueryRow(ctx, "SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int").Scan(&pid)
	return pid, err
}

// as is the superuser's URL with our login, which has the same password.
func as(superuser string) (string, error) {
	u, err := url.Parse(superuser)
	if err != nil {
		return "", fmt.Errorf("the server's URL: %w", err)
	}
	password, _ := u.User.Password()
	u.User = url.UserPassword(login, password)
	return u.String(), nil
}
