// Package logs makes the one logger of a program and names the fields that every
// line of the product carries. Lines are JSON, one event each, written to the
// writer that main was given. Nothing here reaches for a global logger.
package logs

import (
	"io"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/onceguard/onceguard/pkg/window"
)

// Names of fields, the same in every program.
const (
	FieldJobName     = "job_name"
	FieldWindowStart = "window_start"
	FieldExecutionID = "execution_id"
	FieldAttempt     = "attempt"
	FieldProcessed   = "processed"
)

// New gives a JSON logger that writes lines of at least the given level to w.
// Writes are serialised, so w need not be safe for concurrent use.
func New(w io.Writer, level zapcore.Level) *zap.Logger {
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = func(t time.Time, a zapcore.PrimitiveArrayEncoder) {
		a.AppendString(t.UTC().Format("2006-01-02T15:04:05.000Z07:00")) // as guard-exec writes it
	}
	enc.EncodeDuration = zapcore.StringDurationEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.Lock(zapcore.AddSync(w)), level)
	return zap.New(core)
}

// Window gives the fields that name a window.
func Window(w window.Window) []zap.Field {
	return []zap.Field{
		zap.String(FieldJobName, w.JobName),
		zap.Time(FieldWindowStart, w.Start.UTC()),
	}
}

// Attempt gives the fields that name an attempt; attempt is 0 while none is held.
func Attempt(id uuid.UUID, attempt int) []zap.Field {
	return []zap.Field{
		zap.String(FieldExecutionID, id.String()),
		zap.Int(FieldAttempt, attempt),
	}
}
