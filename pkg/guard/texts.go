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
	TextBusy            Key = "busy"
	TextBusyFail        Key = "busy-fail"
	TextBusyProbed      Key = "busy-probed"
	TextCommitting      Key = "committing"
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
	TextNotStarted      Key = "not-started"
	TextPodLeft         Key = "pod-left"
	TextClaimed         Key = "claimed"
	TextAdopted         Key = "adopted"
	TextCompleted       Key = "completed"
	TextReleased        Key = "released"
	TextCommitted       Key = "committed"
	TextClaimGone       Key = "claim-gone"
	TextNothingToRecord Key = "nothing-to-record"
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
	TextBusy: {
		"window %[1]s is being worked on by attempt %[2]d of %[3]s; waiting for its outcome",
		"窗口 %[1]s 正由 %[3]s 的第 %[2]d 次尝试处理；等待其结果",
	},
	TextBusyFail: {
		"window %[1]s is being worked on by attempt %[2]d of %[3]s; not started, as onceguard.dev/busy=fail says",
		"窗口 %[1]s 正由 %[3]s 的第 %[2]d 次尝试处理；按 onceguard.dev/busy=fail 不启动",
	},
	TextBusyProbed: {
		"window %[1]s is being worked on by another attempt; a restarted container with a liveness or startup probe cannot wait for it",
		"窗口 %[1]s 正由另一次尝试处理；带存活或启动探针的重启容器不能等待",
	},
	TextCommitting: {
		"window %[1]s is being committed by attempt %[2]d of %[3]s; waiting for its outcome",
		"窗口 %[1]s 正由 %[3]s 的第 %[2]d 次尝试提交；等待其结果",
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
		"the ledger was asked to stop this attempt at window %[1]s; the worker is stopped",
		"账本要求停止对窗口 %[1]s 的这次尝试；程序被停止",
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
}

// say renders a sentence. An unknown language is English.
func say(language string, k Key, args ...any) string {
	t := texts[k]
	if language == "zh" {
		return fmt.Sprintf(t.zh, args...)
	}
	return fmt.Sprintf(t.en, args...)
}
