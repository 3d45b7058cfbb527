"""The log of one stream: segments, frames, recovery, and the indexes over what they hold.

Belongs here: everything that turns entries into durable bytes and back, and the state that follows from them (which
sequences live, which subject each has, how many bytes they are). It knows neither NATS nor JSON nor the lake: an
operation is an opaque body, a subject is bytes.
"""
