package trace

import (
	"container/heap"
	"time"
)

// queue holds what is due in time, the earliest first; ties go by number.
type queue[T timed] []T

type timed interface {
	due() (time.Duration, int)
}

func (q *queue[T]) push(x T) { heap.Push((*order[T])(q), x) }
func (q *queue[T]) pop() T   { return heap.Pop((*order[T])(q)).(T) }
func (q *queue[T]) fix()     { heap.Fix((*order[T])(q), 0) } // after a change of the first

// order is what container/heap needs to see.
type order[T timed] []T

func (o order[T]) Len() int      { return len(o) }
func (o order[T]) Swap(i, j int) { o[i], o[j] = o[j], o[i] }
func (o *order[T]) Push(x any)   { *o = append(*o, x.(T)) }

func (o order[T]) Less(i, j int) bool {
	a, m := o[i].due()
	b, n := o[j].due()
	return a < b || a == b && m < n
}

func (o *order[T]) Pop() any {
	last := len(*o) - 1
	x := (*o)[last]
	clear((*o)[last:])
	*o = (*o)[:last]
	return x
}
