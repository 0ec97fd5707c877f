package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceguard/onceguard/pkg/contract"
)

// program is one invocation: what main was given and the flags that all commands have.
type program struct {
	env            []string
	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time

	namespace     string
	allNamespaces bool
	kubeconfig    string
	kubeContext   string
	secret        string
	urlFile       string
	timeout       time.Duration

	found source // of the first connection
}

func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-onceguard",
		Short: "The record of Onceguard: each window of a CronJob, once",
		Long: `Read the record of Onceguard: which windows of which jobs are done, running, failed or
closed and why, how often each was tried, which duplicates were prevented, and which windows
nobody has run. And decide about windows: run one again, run those that were missed, cancel
one, delete old ones.

The ledger's URL comes from --ledger-url-file, else from ` + envLedgerURL + `,
else from the Secret named by --secret in the namespace.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl onceguard"},
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetIn(p.stdin)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })

	flags := root.PersistentFlags()
	flags.StringVarP(&p.namespace, "namespace", "n", "", "namespace of the jobs and of the ledger's Secret (default: that of the current context)")
	flags.StringVar(&p.kubeconfig, "kubeconfig", "", "kubeconfig file")
	flags.StringVar(&p.kubeContext, "context", "", "context of the kubeconfig")
	flags.StringVar(&p.secret, "secret", contract.LedgerSecretPrefix+contract.DefaultLedger, "Secret with the ledger's URL under the key "+contract.LedgerKey)
	flags.StringVar(&p.urlFile, "ledger-url-file", "", "file with the ledger's URL; - reads standard input")
	flags.DurationVar(&p.timeout, "timeout", 30*time.Second, "how long to wait for Kubernetes and the ledger, each command")

	root.AddCommand(p.windowsCommand(), p.showCommand(), p.gapsCommand(), p.explainCommand(),
		p.rerunCommand(), p.cancelCommand(), p.backfillCommand(), p.releaseCommand(), p.pruneCommand(),
		p.migrateCommand(), p.grantCommand(), p.versionCommand())
	return root
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the plugin's version",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(p.stdout, version)
			return err
		},
	}
}

// exactly wants one argument for each name and names what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usagef("%s is missing: %s", names[len(args)], c.UseLine())
		case len(args) > len(names):
			return usagef("unexpected argument %q: %s", args[len(names)], c.UseLine())
		}
		return nil
	}
}
