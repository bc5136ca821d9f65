package engine

// none is the slot that does not exist.
const none = -1

// queue is the line of waiting sequences, linked through their slots.
type queue struct {
	first, last int32
	len         int
	// blocked says that the first one was found to have no room.
	blocked bool
}

func (w *queue) pushBack(seqs []seq, slot int32) {
	seqs[slot].prev, seqs[slot].next = w.last, none
	if w.last == none {
		w.first, w.blocked = slot, false
	} else {
		seqs[w.last].next = slot
	}
	w.last = slot
	w.len++
}

func (w *queue) pushFront(seqs []seq, slot int32) {
	seqs[slot].prev, seqs[slot].next = none, w.first
	if w.first == none {
		w.last = slot
	} else {
		seqs[w.first].prev = slot
	}
	w.first, w.blocked = slot, false
	w.len++
}

func (w *queue) remove(seqs []seq, slot int32) {
	prev, next := seqs[slot].prev, seqs[slot].next
	if prev == none {
		w.first, w.blocked = next, false
	} else {
		seqs[prev].next = next
	}
	if next == none {
		w.last = prev
	} else {
		seqs[next].prev = prev
	}
	w.len--
}
