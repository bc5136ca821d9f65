// Package engine simulates GPU inference engines that behave like measured ones.
//
// It owns three things. Sim is the engine itself: one pure step function of a
// continuous-batching scheduler with a paged KV cache, in virtual time, without
// a wall clock or a goroutine; the profiles are measured parameters for it.
// Server drives one Sim by real time behind the OpenAI API and vLLM's metric
// names, and misbehaves when told to. Fleet runs several Servers on their own
// listeners and lets them crash and come back.
//
// It leaves to others where requests come from, how they are routed and how a
// result is judged. A discrete-event loop drives Sim directly; a gateway only
// ever sees the HTTP face.
package engine
