//! rawshard: a vshard router whose requests cross it as MessagePack bytes.
