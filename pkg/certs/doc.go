// Package certs gives the webhook its serving certificate without help from outside.
//
// The certificate authorities live in one Secret, made by whichever replica comes
// first (create, or get what another created). Each replica signs a leaf of its own
// and keeps it in memory only; every certificate in the Secret that has not expired
// stands in the caBundle of the named MutatingWebhookConfigurations. A new
// authority is added when the newest has lived two thirds of its time, and signs
// only after publishDelay: by then every API server has seen it in the caBundle, so
// there is no moment at which a served leaf is not trusted. Which authority signs is
// a function of the Secret and the clock, so replicas need not agree by talking.
//
//	authority  1 year, back-dated 1 hour, renewed at 2/3
//	leaf       7 days, back-dated 1 hour, renewed at 2/3, at the poll or when it is served
//
// The clock is looked at each minute; no timer is set far ahead, since timers stand
// still while a machine is suspended.
package certs
