package guard

import "fmt"

// Key names one sentence for people. Sentences go to the wrapper (worker's log and
// termination message), to the ledger's attempt, and to the guard's own log.
type Key string

// The sentences. Arguments are given by position, see texts.
const (
	TextSkipCompleted   Key = "skip-completed"
	TextSkipClosed      Key = "skip-closed"
	TextSkipBusy        Key = "skip-busy"
	TextSkipCommitted   Key = "skip-committed"
	TextSkipHook        Key = "skip-hook"
	TextSkipLate        Key = "skip-late"
	TextSkipWasLate     Key = "skip-was-late"
	TextSkipOverlap     Key = "skip-overlap"
	TextSkipOverlapped  Key = "skip-overlapped"
	TextSkipSuperseded  Key = "skip-superseded"
	TextSkipReplaced    Key = "skip-replaced"
	TextSkipCancelled   Key = "skip-cancelled"
	TextSkipRepeats     Key = "skip-repeats"
	TextSkipRepeated    Key = "skip-repeated"
	TextSkipOther       Key = "skip-other"
	TextBusy            Key = "busy"
	TextBusyFail        Key = "busy-fail"
	TextProbed          Key = "probed"
	TextCommitting      Key = "committing"
	TextCommittingOther Key = "committing-other"
	TextOverlap         Key = "overlap"
	TextReplacing       Key = "replacing"
	TextOrder           Key = "order"
	TextOrderUnseen     Key = "order-unseen"
	TextOrderRun        Key = "order-run"
	TextRefusePayload   Key = "refuse-payload"
	TextRefuseExhausted Key = "refuse-exhausted"
	TextRefuseHeld      Key = "refuse-held"
	TextRefuseOther     Key = "refuse-other"
	TextAway            Key = "away"
	TextAwayOver        Key = "away-over"
	TextAwayRunning     Key = "away-running"
	TextProcess         Key = "process"
	TextPod             Key = "pod"
	TextAsking          Key = "asking"
	TextRefused         Key = "refused"
	TextUnknown         Key = "unknown-container"
	TextTwice           Key = "connected-twice"
	TextLeaving         Key = "leaving"
	TextTrustEnded      Key = "trust-ended"
	TextLost            Key = "lost"
	TextCancelled       Key = "cancelled"
	TextSibling         Key = "sibling-failed"
	TextNotAdopted      Key = "not-adopted"
	TextAdopting        Key = "adopting"
	TextSettling        Key = "settling"
	TextNotRecorded     Key = "not-recorded"
	TextNotLearned      Key = "not-learned"
	TextLostAtEnd       Key = "lost-at-end"
	TextUncommitted     Key = "uncommitted"
	TextExited          Key = "exited"
	TextSignalled       Key = "signalled"
	TextVanished        Key = "vanished"
	TextKilled          Key = "killed"
	TextNotStarted      Key = "not-started"
	TextPodLeft         Key = "pod-left"
	TextClaimed         Key = "claimed"
	TextAdopted         Key = "adopted"
	TextCompleted       Key = "completed"
	TextReleased        Key = "released"
	TextCommitted       Key = "committed"
	TextClaimGone       Key = "claim-gone"
	TextNothingToRecord Key = "nothing-to-record"
	TextMeansTimestamp  Key = "means-timestamp"
	TextMeansName       Key = "means-name"
	TextMeansManual     Key = "means-manual"
	TextMeansSeparate   Key = "means-separate"
	TextMeansDeclared   Key = "means-declared"
	TextMeansCatchUp    Key = "means-catch-up"
	TextMeansGiven      Key = "means-given"
	TextMeansSchedule   Key = "means-schedule"
)

// text is one sentence in both languages; both take the same arguments.
type text struct{ en, zh string }

var texts = map[Key]text{
	TextSkipCompleted: {
		"window %[1]s was completed by attempt %[2]d of %[3]s at %[4]s; nothing to do",
		"窗口 %[1]s 已由 %[3]s 的第 %[2]d 次尝试于 %[4]s 完成；无需再做",
	},
	TextSkipClosed: {
		"window %[1]s is older than the ledger's record of this job and was closed; nothing to do",
		"窗口 %[1]s 早于账本对该任务的记录，已关闭；无需再做",
	},
	TextSkipBusy: {
		"window %[1]s is being worked on by attempt %[2]d of %[3]s; skipped, as onceguard.dev/busy=skip says",
		"窗口 %[1]s 正由 %[3]s 的第 %[2]d 次尝试处理；按 onceguard.dev/busy=skip 跳过",
	},
	TextSkipCommitted: {
		"window %[1]s was completed by this pod (attempt %[2]d); nothing to do",
		"窗口 %[1]s 已由本 Pod（第 %[2]d 次尝试）完成；无需再做",
	},
	TextSkipHook: {
		"no attempt at window %[1]s is running here; the hook is skipped",
		"此处没有对窗口 %[1]s 的尝试在运行；跳过该钩子",
	},
	TextSkipLate: {
		"window %[1]s was not started within %[2]s (onceguard.dev/start-deadline) and is closed as late; it does not run",
		"窗口 %[1]s 未在 %[2]s 内启动（onceguard.dev/start-deadline），以 late 关闭；不再运行",
	},
	TextSkipWasLate: {
		"window %[1]s was not started before its start deadline and was closed as late; it does not run",
		"窗口 %[1]s 未在启动期限内启动，已以 late 关闭；不再运行",
	},
	TextSkipOverlap: {
		"window %[1]s does not run, since another one of the job, %[2]s, is running: attempt %[3]d of %[4]s (overlap=skip)",
		"窗口 %[1]s 不运行，因为该任务的另一窗口 %[2]s 正在运行：%[4]s 的第 %[3]d 次尝试（overlap=skip）",
	},
	TextSkipOverlapped: {
		"window %[1]s was closed without running, since another one of the job was running then",
		"窗口 %[1]s 未运行就被关闭，因为当时该任务的另一窗口正在运行",
	},
	TextSkipSuperseded: {
		"window %[1]s does not run, since a newer one of the job, %[2]s, took its place: attempt %[3]d of %[4]s",
		"窗口 %[1]s 不运行，因为该任务较新的窗口 %[2]s 已取而代之：%[4]s 的第 %[3]d 次尝试",
	},
	TextSkipReplaced: {
		"window %[1]s was closed without being done, since a newer one of the job took its place",
		"窗口 %[1]s 未完成就被关闭，因为该任务较新的窗口已取而代之",
	},
	TextSkipCancelled: {
		"window %[1]s was cancelled by a person; it does not run",
		"窗口 %[1]s 已被人工取消；不再运行",
	},
	TextSkipRepeats: {
		"window %[1]s does not run: the clocks were set back, and its civil time was that of window %[2]s before, which stands for both (onceguard.dev/dst=once)",
		"窗口 %[1]s 不运行：时钟被拨回，其当地时间已由之前的窗口 %[2]s 占用，由它代表两者（onceguard.dev/dst=once）",
	},
	TextSkipRepeated: {
		"window %[1]s was closed without running, since the clocks were set back and its civil time had been before (onceguard.dev/dst=once)",
		"窗口 %[1]s 未运行就被关闭，因为时钟被拨回，其当地时间此前已出现过（onceguard.dev/dst=once）",
	},
	TextSkipOther: {
		"window %[1]s is closed (%[2]s); nothing to do",
		"窗口 %[1]s 已关闭（%[2]s）；无需再做",
	},
	TextBusy: {
		"window %[1]s is being worked on by attempt %[2]d of %[3]s; waiting for its outcome",
		"窗口 %[1]s 正由 %[3]s 的第 %[2]d 次尝试处理；等待其结果",
	},
	TextBusyFail: {
		"window %[1]s is being worked on by attempt %[2]d of %[3]s; not started, as onceguard.dev/busy=fail says",
		"窗口 %[1]s 正由 %[3]s 的第 %[2]d 次尝试处理；按 onceguard.dev/busy=fail 不启动",
	},
	TextProbed: {
		"a restarted container with a liveness or startup probe cannot wait: %[1]s",
		"带存活或启动探针的重启容器不能等待：%[1]s",
	},
	TextCommitting: {
		"window %[1]s is being committed by attempt %[2]d of %[3]s; waiting for its outcome",
		"窗口 %[1]s 正由 %[3]s 的第 %[2]d 次尝试提交；等待其结果",
	},
	TextCommittingOther: {
		"window %[1]s waits: another one of the job, %[2]s, is being committed by attempt %[3]d of %[4]s",
		"窗口 %[1]s 等待中：该任务的另一窗口 %[2]s 正由 %[4]s 的第 %[3]d 次尝试提交",
	},
	TextOverlap: {
		"window %[1]s waits until another one of the job, %[2]s, has ended: attempt %[3]d of %[4]s is working on it",
		"窗口 %[1]s 等待该任务的另一窗口 %[2]s 结束：%[4]s 的第 %[3]d 次尝试正在处理它",
	},
	TextReplacing: {
		"window %[1]s replaces the older window %[2]s: attempt %[3]d of %[4]s was asked to stop and is waited for",
		"窗口 %[1]s 取代较早的窗口 %[2]s：已要求 %[4]s 的第 %[3]d 次尝试停止，等待其结束",
	},
	TextOrder: {
		"window %[1]s waits for its turn: the earlier window %[2]s is not closed, its last attempt is %[3]d of %[4]s (onceguard.dev/order=serial); should nobody end it: %[5]s",
		"窗口 %[1]s 等待轮到自己：较早的窗口 %[2]s 尚未关闭，其最近一次尝试是 %[4]s 的第 %[3]d 次（onceguard.dev/order=serial）；若无人会结束它：%[5]s",
	},
	TextOrderUnseen: {
		"window %[1]s waits for its turn: the earlier window %[2]s was never started, and is waited for until it has run or is recorded as missed (onceguard.dev/order=serial); if it shall not run: %[3]s",
		"窗口 %[1]s 等待轮到自己：较早的窗口 %[2]s 从未启动，等到它运行过或被记为 missed（onceguard.dev/order=serial）；若不应运行它：%[3]s",
	},
	TextOrderRun: {
		"window %[1]s waits for its turn: the earlier window %[2]s was never started (--order serial); run it: guard run --job %[3]s --window-start %[4]s …; if it shall not run: %[5]s; if only later windows are to be kept in order, begin with --since",
		"窗口 %[1]s 等待轮到自己：较早的窗口 %[2]s 从未启动（--order serial）；运行它：guard run --job %[3]s --window-start %[4]s …；若不应运行它：%[5]s；若只需让之后的窗口按序，请用 --since 指定起点",
	},
	TextRefusePayload: {
		"window %[1]s belongs to the payload %[2]s, and this run has %[3]s; nothing was started: give it the same payload, or another window. A person may free it for any payload: %[4]s, or close it: %[5]s",
		"窗口 %[1]s 属于负载 %[2]s，而本次运行的负载是 %[3]s；未启动任何程序：请使用相同的负载，或另一个窗口。可由人工放开，使任何负载都可运行：%[4]s，或关闭：%[5]s",
	},
	TextRefuseExhausted: {
		"window %[1]s has failed as often as it may and is closed as exhausted, last by attempt %[2]d of %[3]s; nothing was started. To run it again, mend the cause, then: %[4]s",
		"窗口 %[1]s 的失败次数已达上限，以 exhausted 关闭，最后是 %[3]s 的第 %[2]d 次尝试；未启动任何程序。若要再次运行，先排除原因，然后：%[4]s",
	},
	TextRefuseHeld: {
		"window %[1]s is held, since attempt %[2]d of %[3]s crashed or lost its lease (onceguard.dev/on-crash=hold); nothing was started. See what it has done, then run it again: %[4]s, or close it: %[5]s",
		"窗口 %[1]s 被扣留，因为 %[3]s 的第 %[2]d 次尝试崩溃或失去了租约（onceguard.dev/on-crash=hold）；未启动任何程序。请查明它做了什么，然后再次运行：%[4]s，或关闭：%[5]s",
	},
	TextRefuseOther: {
		"the ledger refuses window %[1]s (%[2]s); nothing was started",
		"账本拒绝窗口 %[1]s（%[2]s）；未启动任何程序",
	},
	TextAway: {
		"waiting for the ledger until %[1]s: %[2]s",
		"等待账本，直到 %[1]s：%[2]s",
	},
	TextAwayOver: {
		"gave up waiting for the ledger, nothing was started: %[1]s",
		"放弃等待账本，未启动任何程序：%[1]s",
	},
	TextAwayRunning: {
		"heartbeat failed, the worker may run until %[1]s: %[2]s",
		"心跳失败，程序可运行到 %[1]s：%[2]s",
	},
	TextProcess: {"another process", "另一进程"},
	TextPod:     {"pod %[1]s", "Pod %[1]s"},
	TextAsking: {
		"the ledger is being asked for window %[1]s",
		"正在向账本申请窗口 %[1]s",
	},
	TextRefused: {"%[1]s", "%[1]s"},
	TextUnknown: {
		"container %[1]q of kind %[2]q is not one that this pod's guard was told of; it knows %[3]s",
		"容器 %[1]q（类型 %[2]q）不在本 Pod 的守卫名单中；名单为 %[3]s",
	},
	TextTwice: {
		"container %[1]q is connected to the guard already",
		"容器 %[1]q 已经连接到守卫",
	},
	TextLeaving: {
		"the pod is being stopped; nothing new is started",
		"Pod 正在停止；不再启动新程序",
	},
	TextTrustEnded: {
		"the ledger could not be reached for almost the whole lease, so another attempt may start soon; the worker is stopped",
		"几乎整个租约期内都无法连接账本，别的尝试可能即将开始；程序被停止",
	},
	TextLost: {
		"another attempt holds window %[1]s, or its record is gone; the worker is stopped",
		"窗口 %[1]s 已被另一尝试持有，或其记录已不存在；程序被停止",
	},
	TextCancelled: {
		"a newer window of the job replaces window %[1]s (overlap=replace, by onceguard.dev/overlap or concurrencyPolicy); the worker is stopped",
		"该任务较新的窗口取代窗口 %[1]s（overlap=replace，来自 onceguard.dev/overlap 或 concurrencyPolicy）；程序被停止",
	},
	TextSibling: {
		"the attempt failed: %[1]s; the other containers of the pod are stopped",
		"这次尝试失败：%[1]s；Pod 的其他容器被停止",
	},
	TextNotAdopted: {
		"the restarted guard found no running attempt at window %[1]s; the worker is stopped",
		"重启后的守卫没有找到对窗口 %[1]s 的运行中的尝试；程序被停止",
	},
	TextAdopting: {
		"the guard was restarted and is asking the ledger whether its attempt is still current",
		"守卫已重启，正在询问账本其尝试是否仍有效",
	},
	TextSettling: {
		"the outcome is being recorded in the ledger",
		"正在把结果写入账本",
	},
	TextNotRecorded: {
		"the worker exited 0 but the completion could not be recorded: %[1]s; the window will be tried again",
		"程序以 0 退出，但未能记录完成：%[1]s；该窗口将被重试",
	},
	TextNotLearned: {
		"the worker exited 0 and the ledger could not be asked whether it had committed: %[1]s; if not, the window will be tried again",
		"程序以 0 退出，但无法向账本查询它是否已提交：%[1]s；若未提交，该窗口将被重试",
	},
	TextLostAtEnd: {
		"the worker exited 0 but its attempt no longer holds window %[1]s: %[2]s",
		"程序以 0 退出，但其尝试已不再持有窗口 %[1]s：%[2]s",
	},
	TextUncommitted: {
		"exited 0 without committing window %[1]s; with onceguard.dev/completion=transaction that is a failure: POST /v1/commit first",
		"未提交窗口 %[1]s 就以 0 退出；在 onceguard.dev/completion=transaction 下这是失败：请先 POST /v1/commit",
	},
	TextExited: {
		"container %[1]s exited with code %[2]d",
		"容器 %[1]s 以代码 %[2]d 退出",
	},
	TextSignalled: {
		"container %[1]s was stopped from outside and ended with code %[2]d",
		"容器 %[1]s 被外部停止，以代码 %[2]d 结束",
	},
	TextVanished: {
		"container %[1]s vanished without reporting an exit",
		"容器 %[1]s 未报告退出就消失了",
	},
	TextKilled: {
		"container %[1]s crashed: it was ended by signal %[2]d (code %[3]d), which neither Kubernetes nor Onceguard sent to stop it; out of memory is one cause of 9",
		"容器 %[1]s 崩溃：被信号 %[2]d（代码 %[3]d）终止，而 Kubernetes 和 Onceguard 都没有要求它停止；信号 9 的原因之一是内存不足",
	},
	TextNotStarted: {
		"no wrapped container was running for %[1]s, so the window was given back",
		"%[1]s 内没有受守护的容器在运行，窗口已交还",
	},
	TextPodLeft: {
		"the pod is being stopped",
		"Pod 正在停止",
	},
	TextClaimed: {
		"claimed window %[1]s (%[2]s)",
		"取得窗口 %[1]s（%[2]s）",
	},
	TextAdopted: {
		"the restarted guard still holds window %[1]s",
		"重启后的守卫仍持有窗口 %[1]s",
	},
	TextCompleted: {
		"window %[1]s is completed",
		"窗口 %[1]s 已完成",
	},
	TextReleased: {
		"the attempt ended as %[1]s: %[2]s",
		"这次尝试以 %[1]s 结束：%[2]s",
	},
	TextCommitted: {
		"window %[1]s was committed through the local endpoint",
		"窗口 %[1]s 已通过本地端点提交",
	},
	TextClaimGone: {
		"the claim of window %[1]s is no longer current; claiming again",
		"对窗口 %[1]s 的占有已失效；重新申请",
	},
	TextNothingToRecord: {
		"the outcome could not be recorded: %[1]s; whoever takes the window next records the attempt as lost",
		"未能记录结果：%[1]s；下一个取得该窗口者会把这次尝试记为 lost",
	},
	TextMeansTimestamp: {
		"Job %[2]s was made by the CronJob controller for window %[1]s",
		"Job %[2]s 由 CronJob 控制器为窗口 %[1]s 创建",
	},
	TextMeansName: {
		"Job %[2]s means window %[1]s, as its name says",
		"Job %[2]s 按其名称对应窗口 %[1]s",
	},
	TextMeansManual: {
		"Job %[2]s was made by hand and means window %[1]s, the newest that was due then",
		"Job %[2]s 由人工创建，对应窗口 %[1]s，即当时最新到期的窗口",
	},
	TextMeansSeparate: {
		"Job %[2]s was made by hand and is a run of its own, %[1]s (onceguard.dev/manual=separate)",
		"Job %[2]s 由人工创建，是独立的一次运行 %[1]s（onceguard.dev/manual=separate）",
	},
	TextMeansDeclared: {
		"Job %[2]s means window %[1]s, as its pod says (onceguard.dev/window-start)",
		"Job %[2]s 对应窗口 %[1]s，由其 Pod 指定（onceguard.dev/window-start）",
	},
	TextMeansCatchUp: {
		"Job %[2]s catches up window %[1]s",
		"Job %[2]s 补跑窗口 %[1]s",
	},
	TextMeansGiven: { // guard run
		"this run means window %[1]s (--window-start)",
		"本次运行对应窗口 %[1]s（--window-start）",
	},
	TextMeansSchedule: {
		"this run means window %[1]s (%[2]s), the newest due one of schedule %[3]q in %[4]s",
		"本次运行对应窗口 %[1]s（%[2]s），即 %[4]s 时区计划 %[3]q 最新到期的窗口",
	},
}

// say renders a sentence. An unknown language is English.
func say(language string, k Key, args ...any) string {
	t := texts[k]
	if language == "zh" {
		return fmt.Sprintf(t.zh, args...)
	}
	return fmt.Sprintf(t.en, args...)
}
