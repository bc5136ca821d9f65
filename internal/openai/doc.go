// Package openai owns what the gateway reads of the OpenAI wire format: the
// few request fields it needs, the frames of an event stream, and the shape
// of errors. It never re-serialises a body: requests are edited by splicing
// and streams are read beside the copy.
package openai
