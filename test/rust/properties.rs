//! What must hold of any bytes: the decoders against plain recursive models.

mod common;

use common::value::Value;
use proptest::collection::vec;
use proptest::prelude::*;

use rawshard::call::key::Keyspace;
use rawshard::call::raw_args::{self, RawArgs};
use rawshard::call::verdict::{self, Envelope, Verdict};
use rawshard::route::hash::{Hash, Hasher, Rules};
use rawshard::wire::fit::{self, Unfit};
use rawshard::wire::iproto::{self, Answer, Split};
use rawshard::wire::mp::{self, Cursor, EXT_TUPLE, Fault, Met};
use rawshard::wire::path::{Inline, Path, Stray};
use rawshard::wire::payload::HEAD_MAX;
use rawshard::wire::vshard::{self, BucketStat, ErrorView, StorageAnswer};

/// Deep and wide enough to meet every header, small enough to be many.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::Bool),
        any::<u64>().prop_map(Value::Uint),
        (0u64..300).prop_map(Value::Uint),
        (i64::MIN..0).prop_map(Value::Int),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        vec(any::<u8>(), 0..40).prop_map(Value::Str),
        vec(any::<u8>(), 250..300).prop_map(Value::Bin),
        (-20i8..20, vec(any::<u8>(), 0..20)).prop_map(|(kind, bytes)| Value::Ext(kind, bytes)),
    ];
    leaf.prop_recursive(6, 64, 20, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..20).prop_map(Value::Array),
            vec((inner.clone(), inner.clone()), 0..20).prop_map(Value::Map),
            // A tuple: its format, then its array.
            (any::<u16>(), vec(inner, 0..5)).prop_map(|(format, items)| tuple(u64::from(format), items)),
        ]
    })
}

fn tuple(format: u64, items: Vec<Value>) -> Value {
    let mut payload = Value::Uint(format).bytes();
    Value::Array(items).encode(&mut payload);
    Value::Ext(EXT_TUPLE, payload)
}

/// Keys and values that an error object may have, and others.
fn error_like() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        prop::sample::select(vec!["type", "code", "message", "destination", "replica", "master", "name"])
            .prop_map(Value::str),
        (0u64..8).prop_map(Value::Uint),
        value(),
    ];
    let field = prop_oneof![
        prop::sample::select(vec!["ShardingError", "ClientError", "rs1"]).prop_map(Value::str),
        (0u64..50).prop_map(Value::Uint),
        value(),
    ];
    vec((key, field), 0..8).prop_map(Value::Map)
}

/// The same value with headers of any width that can hold it. `choices` picks them.
fn encode_wide(value: &Value, choices: &mut impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let mut header = |len: u64, forms: &[(u8, u32)], out: &mut Vec<u8>| {
        let fitting: Vec<_> =
            forms.iter().filter(|(_, width)| *width == 8 || len >> (8 * width) == 0).collect();
        let (marker, width) = *fitting[choices.next().unwrap_or(0) as usize % fitting.len()];
        out.push(marker);
        out.extend_from_slice(&len.to_be_bytes()[8 - width as usize..]);
    };
    match value {
        Value::Uint(number) => {
            let signed: &[(u8, u32)] = if *number <= i64::MAX as u64 { &[(0xd3, 8)] } else { &[] };
            let forms = [&[(0xcc, 1), (0xcd, 2), (0xce, 4), (0xcf, 8)], signed].concat();
            header(*number, &forms, out);
        }
        Value::Str(bytes) => {
            header(bytes.len() as u64, &[(0xd9, 1), (0xda, 2), (0xdb, 4)], out);
            out.extend_from_slice(bytes);
        }
        Value::Bin(bytes) => {
            header(bytes.len() as u64, &[(0xc4, 1), (0xc5, 2), (0xc6, 4)], out);
            out.extend_from_slice(bytes);
        }
        Value::Ext(kind, bytes) => {
            header(bytes.len() as u64, &[(0xc7, 1), (0xc8, 2), (0xc9, 4)], out);
            out.push(*kind as u8);
            out.extend_from_slice(bytes);
        }
        Value::Array(items) => {
            header(items.len() as u64, &[(0xdc, 2), (0xdd, 4)], out);
            items.iter().for_each(|item| encode_wide(item, choices, out));
        }
        Value::Map(fields) => {
            header(fields.len() as u64, &[(0xde, 2), (0xdf, 4)], out);
            for (key, item) in fields {
                encode_wide(key, choices, out);
                encode_wide(item, choices, out);
            }
        }
        other => other.encode(out),
    }
}

fn wide() -> impl Strategy<Value = (Value, Vec<u8>)> {
    (value(), vec(any::<u8>(), 64)).prop_map(|(value, choices)| {
        let mut bytes = Vec::new();
        encode_wide(&value, &mut choices.into_iter().cycle(), &mut bytes);
        (value, bytes)
    })
}

/// A value's encoding with a few bytes changed, cut or added.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let damage = (any::<prop::sample::Index>(), any::<u8>(), 0..3u8);
    (wide(), vec(damage, 0..4)).prop_map(|((_, mut bytes), damages)| {
        for (at, byte, how) in damages {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.truncate(at),
                _ => bytes.insert(at, byte),
            }
        }
        bytes
    })
}

fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 0..100), damaged()]
}

fn has_tuple(value: &Value) -> bool {
    has_ext(value, &|kind| kind == EXT_TUPLE)
}

/// Whether there is an extension in `value` at any depth whose type is one `of`.
fn has_ext(value: &Value, of: &impl Fn(i8) -> bool) -> bool {
    match value {
        Value::Ext(kind, _) => of(*kind),
        Value::Array(items) => items.iter().any(|item| has_ext(item, of)),
        Value::Map(fields) => fields.iter().any(|(key, value)| has_ext(key, of) || has_ext(value, of)),
        _ => false,
    }
}

/// The value with plain arrays for tuples; None if a tuple is none.
fn without_tuples(value: &Value) -> Option<Value> {
    Some(match value {
        Value::Ext(kind, payload) if *kind == EXT_TUPLE => {
            let (format, len) = Value::decode(payload)?;
            if !matches!(format, Value::Uint(_) | Value::Int(0..)) {
                return None;
            }
            match Value::only(&payload[len..])? {
                Value::Array(items) => without_tuples(&Value::Array(items))?,
                _ => return None,
            }
        }
        Value::Array(items) => Value::Array(items.iter().map(without_tuples).collect::<Option<_>>()?),
        Value::Map(fields) => Value::Map(
            fields
                .iter()
                .map(|(key, value)| Some((without_tuples(key)?, without_tuples(value)?)))
                .collect::<Option<_>>()?,
        ),
        plain => plain.clone(),
    })
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Map(fields) => {
            1 + fields.iter().map(|(key, value)| depth(key).max(depth(value))).max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// NaNs are equal here if their bits are.
fn same(left: &Value, right: &Value) -> bool {
    left.bytes() == right.bytes()
}

fn lies_in(part: &[u8], whole: &[u8]) -> bool {
    let (part, whole) = (part.as_ptr_range(), whole.as_ptr_range());
    part.start >= whole.start && part.end <= whole.end
}

/// `PROPTEST_CASES` sets how many.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 100;
    }
    config
}

/// A way into a value, by positions: the path's text, and what is there.
fn way<'v>(value: &'v Value, turns: &[prop::sample::Index]) -> (String, &'v Value) {
    let (mut text, mut at) = (String::new(), value);
    for turn in turns {
        match at {
            Value::Array(items) if !items.is_empty() => {
                let i = turn.index(items.len());
                text.push_str(&format!("[{}]", i + 1));
                at = &items[i];
            }
            Value::Map(fields) if !fields.is_empty() => {
                let (key, inner) = &fields[turn.index(fields.len())];
                let step = match key {
                    Value::Uint(number @ 1..) => format!("[{number}]"),
                    Value::Str(name) => match std::str::from_utf8(name) {
                        Ok(name) if !name.is_empty() && !name.contains('"') => format!("[\"{name}\"]"),
                        _ => return (text, at),
                    },
                    _ => return (text, at),
                };
                // Of equal keys the first counts.
                if fields
                    .iter()
                    .find(|(other, _)| other == key)
                    .is_some_and(|(_, first)| !std::ptr::eq(first, inner))
                {
                    return (text, at);
                }
                text.push_str(&step);
                at = inner;
            }
            _ => break,
        }
    }
    (text, at)
}

/// A map is written with names for keys more often than [`value`] has it.
fn tree() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        4 => "[a-z_][a-z0-9_]{0,8}".prop_map(|name| Value::Str(name.into_bytes())),
        1 => any::<String>().prop_map(|name| Value::Str(name.into_bytes())),
        2 => (0u64..300).prop_map(Value::Uint),
        1 => value(),
    ];
    let leaf = prop_oneof![value(), (0u64..300).prop_map(Value::Uint)];
    leaf.prop_recursive(6, 64, 8, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Value::Array),
            vec((key.clone(), inner), 0..8).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_value_is_passed_over_exactly((value, bytes) in wide(), behind in vec(any::<u8>(), 0..10)) {
        let all = [&bytes[..], &behind].concat();
        let mut cursor = Cursor::new(&all);
        prop_assert_eq!(cursor.span(), Ok(&bytes[..]));
        prop_assert_eq!(cursor.rest(), &behind[..]);
        let met = Met { extensions: has_ext(&value, &|_| true), tuples: has_tuple(&value) };
        prop_assert_eq!(Cursor::new(&bytes).walked(), Ok((&bytes[..], met)));
        for cut in 0..bytes.len().min(300) {
            prop_assert_eq!(Cursor::new(&bytes[..cut]).skip(), Err(Fault::Truncated));
        }
    }

    #[test]
    fn any_bytes_are_judged_as_the_model_does(bytes in any_bytes()) {
        let model = Value::decode(&bytes).map(|(_, len)| len);
        let mut cursor = Cursor::new(&bytes);
        let skipped = cursor.skip().ok().map(|()| cursor.position());
        prop_assert_eq!(skipped, model);
    }

    #[test]
    fn tuples_become_arrays_as_in_the_model((value, bytes) in wide()) {
        let mut out = b"before".to_vec();
        match (without_tuples(&value), mp::copy_without_tuples(&bytes, &mut out)) {
            (Some(plain), Ok(())) => {
                prop_assert_eq!(&out[..6], b"before");
                let copied = Value::only(&out[6..]).expect("one value");
                // What was in no tuple keeps its width, so only values are compared.
                prop_assert!(same(&copied, &plain));
                if !has_tuple(&value) {
                    prop_assert_eq!(&out[6..], &bytes[..], "bit for bit");
                }
            }
            (None, Err(_)) => {}
            (plain, copied) => prop_assert!(false, "model {plain:?}, copy {copied:?}"),
        }
    }

    #[test]
    fn no_bytes_confuse_the_copy(bytes in any_bytes()) {
        let mut out = Vec::new();
        let copied = mp::copy_without_tuples(&bytes, &mut out);
        let model = Value::only(&bytes).and_then(|value| without_tuples(&value));
        prop_assert_eq!(copied.is_ok(), model.is_some());
        if let Some(plain) = model {
            prop_assert!(same(&Value::only(&out).expect("one value"), &plain));
        }
    }

    #[test]
    fn depth_is_the_models((value, bytes) in wide(), levels in 0usize..8) {
        match fit::fit_for_host(&bytes, levels) {
            Ok(()) => prop_assert!(depth(&value) <= levels),
            Err(Unfit::TooDeep) => prop_assert!(depth(&value) > levels),
            Err(Unfit::Extension) => prop_assert!(bytes.iter().any(|byte| matches!(byte, 0xc7..=0xc9 | 0xd4..=0xd8))),
        }
    }

    #[test]
    fn numbers_of_any_width(number in any::<u64>(), choice in any::<u8>()) {
        let mut bytes = Vec::new();
        encode_wide(&Value::Uint(number), &mut std::iter::once(choice), &mut bytes);
        prop_assert_eq!(Cursor::new(&bytes).uint(), Ok(number));
        prop_assert_eq!(Cursor::new(&bytes).number(), Ok(number as f64));
        let small = number >> 58;
        prop_assert_eq!(Cursor::new(&Value::Uint(small).bytes()).uint(), Ok(small));
    }

    #[test]
    fn typed_reads_end_within_the_bytes(bytes in any_bytes()) {
        let reads: [fn(&mut Cursor<'_>) -> bool; 10] = [
            |cursor| cursor.bool().is_ok(),
            |cursor| cursor.uint().is_ok(),
            |cursor| cursor.number().is_ok(),
            |cursor| cursor.str().is_ok(),
            |cursor| cursor.bytes().is_ok(),
            |cursor| cursor.array().is_ok(),
            |cursor| cursor.map().is_ok(),
            |cursor| cursor.take_nil().is_ok(),
            |cursor| cursor.span().is_ok(),
            |cursor| cursor.skip_many(3).is_ok(),
        ];
        for read in reads {
            let mut cursor = Cursor::new(&bytes);
            read(&mut cursor);
            prop_assert!(cursor.position() <= bytes.len());
        }
    }

    #[test]
    fn frames_lie_within_the_bytes(bytes in any_bytes()) {
        match iproto::split(&bytes) {
            Ok(Split::Frame { packet, end }) => {
                prop_assert!(packet <= end && end <= bytes.len());
                // More bytes behind change nothing.
                let more = [&bytes[..], b"more"].concat();
                prop_assert_eq!(iproto::split(&more), Ok(Split::Frame { packet, end }));
                if let Ok(header) = iproto::header(&bytes[packet..end]) {
                    prop_assert!(header.body <= end - packet);
                }
            }
            Ok(Split::Partial { wanted }) => prop_assert!(wanted > bytes.len()),
            Err(_) => {}
        }
        if let Ok(header) = iproto::header(&bytes) {
            prop_assert!(header.body <= bytes.len());
        }
    }

    #[test]
    fn parts_of_answers_lie_within_them_and_are_whole(bytes in any_bytes()) {
        if let Ok(answer) = iproto::answer(&bytes) {
            for part in [answer.data, answer.error_stack].into_iter().flatten() {
                prop_assert!(lies_in(part, &bytes));
                prop_assert!(Value::only(part).is_some());
            }
            prop_assert!(answer.message.is_none_or(|text| lies_in(text, &bytes)));
        }
    }

    #[test]
    fn answers_with_the_keys_of_answers(
        fields in vec((prop::sample::select(vec![0x30u64, 0x31, 0x52, 0x60]), error_like()), 0..4),
        kind in prop::sample::select(vec![0u64, 0x8000, 0x8020, 0x8021, u64::MAX]),
    ) {
        let map = Value::Map(fields.into_iter().map(|(key, value)| (Value::Uint(key), value)).collect());
        judged(kind, &map.bytes())?;
    }

    #[test]
    fn storage_answers_of_any_shape(status in value(), rest in vec(error_like(), 0..4), wide in any::<bool>()) {
        let status = if wide { status } else { Value::Nil };
        let mut items = vec![status];
        items.extend(rest);
        let data = Value::Array(items).bytes();
        match vshard::storage_answer(&data) {
            Ok(StorageAnswer::Values { values, count }) => {
                prop_assert_eq!(Value::sequence(values).map(|values| values.len()), Some(count as usize));
            }
            Ok(StorageAnswer::Raised(error) | StorageAnswer::Refused(error)) => {
                prop_assert!(Value::only(error).is_some());
                ErrorView::parse(error);
            }
            Err(_) => {}
        }
        let body = [&b"\x81\x30"[..], &data].concat();
        judged(0, &body)?;
    }

    #[test]
    fn any_bytes_of_a_storage_are_harmless(bytes in any_bytes(), kind in any::<u64>()) {
        let _ = vshard::storage_answer(&bytes);
        ErrorView::parse(&bytes);
        if let Ok(BucketStat::Refused(error)) = vshard::bucket_stat(&bytes) {
            prop_assert!(lies_in(error, &bytes));
        }
        if let Ok(page) = vshard::discovery_page(&bytes) {
            prop_assert!(page.buckets.len() <= bytes.len());
        }
        judged(kind, &bytes)?;
    }

    #[test]
    fn an_exception_becomes_one_value(
        message in prop_oneof![
            vec(any::<u8>(), 0..30),
            r#"\{"type":"ShardingError","code":[0-9]{1,20},"x":(\[\[1.5,null\],-7\]|"y"|true)\}"#
                .prop_map(String::into_bytes),
        ],
        stack in prop_oneof![
            error_like(),
            vec(error_like(), 0..4).prop_map(Value::Array),
            vec(stacked(), 0..4).prop_map(Value::Array),
            // More causes than are followed.
            stacked().prop_map(|error| Value::Array(vec![error; 70])),
        ],
        kind in any::<u64>(),
        with_stack in any::<bool>(),
    ) {
        let stack = stack.bytes();
        let answer = Answer {
            message: Some(&message),
            error_stack: with_stack.then_some(&stack[..]),
            ..Answer::default()
        };
        let mut out = b"\xc0".to_vec();
        if vshard::write_exception(&mut out, kind, &answer).is_ok() {
            prop_assert_eq!(out[0], 0xc0);
            let error = Value::only(&out[1..]);
            prop_assert!(matches!(error, Some(Value::Map(_))), "{:?}", error);
        }
    }

    #[test]
    fn greetings_of_any_bytes(bytes in vec(any::<u8>(), 128), text in "[ -~]{0,50}") {
        let _ = iproto::Greeting::parse(bytes[..].try_into().expect("128 bytes"));
        let like = format!("{:<63}\n{text:<63}\n", format!("Tarantool 2.6.0 (Binary) {}", &text));
        if let Ok(greeting) = like.as_bytes().try_into() {
            let _ = iproto::Greeting::parse(greeting);
        }
    }

    #[test]
    fn raw_arguments_of_any_values(
        bucket in prop_oneof![(0u64..40).prop_map(Value::Uint), value()],
        opts in prop_oneof![Just(Value::Nil), Just(Value::str("read")), Just(Value::str("write")), value()],
        func in prop_oneof![Just(Value::str("echo")), vec(any::<u8>(), 0..300).prop_map(Value::Str), value()],
        args in prop_oneof![vec(value(), 0..4).prop_map(Value::Array), Just(Value::Nil), value()],
        call_opts in prop_oneof![
            Just(Value::Nil),
            any::<f64>().prop_map(|timeout| Value::map([("timeout", Value::F64(timeout))])),
            value(),
        ],
        count in 0usize..7,
        choices in vec(any::<u8>(), 64),
    ) {
        let mut items = vec![bucket.clone(), opts, func.clone(), args.clone(), call_opts, Value::Nil];
        items.truncate(count);
        let mut bytes = Vec::new();
        encode_wide(&Value::Array(items), &mut choices.into_iter().cycle(), &mut bytes);
        let parsed = RawArgs::parse(&bytes, 30).is_ok();
        match raw_args::read(bytes.clone(), Keyspace::new(30)) {
            Ok(read) => {
                let mut head = [0; HEAD_MAX];
                let len = read.payload.head().write(&mut head);
                let body = [&head[..len], read.payload.bytes()].concat();
                let args = match args {
                    Value::Array(_) if count > 3 => without_tuples(&args).expect("its tuples are tuples"),
                    _ => Value::Array(vec![]),
                };
                let number = Value::Uint(u64::from(read.bucket.number()));
                let call = Value::Array(vec![number, Value::str(read.access.mode.name()), func, args]);
                let name = Value::str("vshard.storage.call");
                let expected = Value::Map(vec![(Value::Uint(0x22), name), (Value::Uint(0x21), call)]);
                prop_assert!(same(&Value::only(&body).expect("one body"), &expected));
                prop_assert_eq!(raw_args::peek_bucket(&bytes, Keyspace::new(30)).is_some(), !matches!(bucket, Value::F32(_) | Value::F64(_)));
            }
            Err((given_back, _)) => {
                prop_assert_eq!(given_back, bytes);
                prop_assert!(!parsed || has_tuple(&args));
            }
        }
    }

    #[test]
    fn paths_lead_where_the_model_does(
        tree in tree(),
        turns in vec(any::<prop::sample::Index>(), 0..8),
        choices in vec(any::<u8>(), 64),
    ) {
        let (text, there) = way(&tree, &turns);
        if text.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::new();
        encode_wide(&tree, &mut choices.into_iter().cycle(), &mut bytes);
        let (mut cursor, mut same_way) = (Cursor::new(&bytes), Cursor::new(&bytes));
        let path = Path::new(text.as_bytes()).expect("a path");
        prop_assert_eq!(path.walk(&mut cursor), Ok(()), "{}", text);
        prop_assert_eq!(Inline::new(text.as_bytes()).expect("a path").walk(&mut same_way), Ok(()));
        prop_assert_eq!(cursor.position(), same_way.position());
        let found = Value::only(cursor.span().expect("a value")).expect("one value");
        prop_assert!(same(&found, there), "{} leads to {:?}, not {:?}", text, found, there);
        // A step more than there is.
        let beyond = format!("{text}[4294967296]");
        let mut cursor = Cursor::new(&bytes);
        prop_assert!(Path::new(beyond.as_bytes()).expect("a path").walk(&mut cursor).is_err());
    }

    #[test]
    fn a_key_has_one_hash_whatever_its_widths((value, bytes) in wide(), strings in any::<bool>()) {
        let hash = if strings { Hash::StrCrc32 } else { Hash::MpCrc32 };
        let of = |bytes: &[u8]| {
            let mut hasher = Hasher::new(hash, Rules::default());
            let mut cursor = Cursor::new(bytes);
            let taken = hasher.key(&mut cursor);
            taken.map(|()| (hasher.finish(), cursor.is_at_end()))
        };
        let hashed = of(&bytes);
        if strings && matches!(&value, Value::Uint(big) if *big >= 100_000_000_000_000 && *big <= i64::MAX as u64) {
            // The text of a big integer tells whether it is signed.
            return Ok(());
        }
        let plain = value.bytes();
        if let Value::Array(items) = &value {
            let signed = |item: &Value| matches!(item, Value::Uint(big) if *big >= 100_000_000_000_000);
            if strings && items.iter().any(signed) {
                return Ok(());
            }
        }
        prop_assert_eq!(hashed, of(&plain));
        if let Ok((_, is_at_end)) = hashed {
            prop_assert!(is_at_end, "a key is one value");
        }
    }

    #[test]
    fn raw_arguments_with_keys(
        tree in vec(tree(), 1..4).prop_map(Value::Array),
        turns in vec(vec(any::<prop::sample::Index>(), 1..6), 1..4),
        strings in any::<bool>(),
        choices in vec(any::<u8>(), 64),
    ) {
        let hash = if strings { Hash::StrCrc32 } else { Hash::MpCrc32 };
        let ways: Vec<_> = turns.iter().map(|turns| way(&tree, turns)).collect();
        let paths = ways.iter().map(|(text, _)| Value::str(text)).collect();
        let selector = Value::map([("path", Value::Array(paths)), ("hash", Value::str(hash.name()))]);
        let call = Value::Array(vec![selector, Value::Nil, Value::str("echo"), tree.clone()]);
        let mut bytes = Vec::new();
        encode_wide(&call, &mut choices.into_iter().cycle(), &mut bytes);
        let keyspace = Keyspace::new(3000);
        let read = raw_args::read(bytes.clone(), keyspace);
        // As if the key were given by itself.
        let key = match &ways[..] {
            [(_, one)] => (*one).clone(),
            several => Value::Array(several.iter().map(|(_, one)| (*one).clone()).collect()),
        };
        let is_key = !ways.iter().any(|(_, one)| matches!(one, Value::Nil | Value::Map(_)));
        let selector = Value::map([("key", key), ("hash", Value::str(hash.name()))]);
        let given = Value::Array(vec![selector, Value::Nil, Value::str("echo")]).bytes();
        let expected = raw_args::read(given, keyspace).ok().filter(|_| is_key).map(|read| read.bucket);
        match read {
            // A big integer's width says whether it is signed; tuples are taken apart on the way.
            Ok(read) if !has_tuple(&tree) => {
                if !strings {
                    prop_assert_eq!(Some(read.bucket), expected);
                }
                prop_assert_eq!(raw_args::peek_bucket(&bytes, keyspace), Some(read.bucket.number()));
            }
            Ok(_) => {}
            Err((given_back, _)) => {
                prop_assert_eq!(&given_back, &bytes);
                prop_assert!(expected.is_none() || has_tuple(&tree));
            }
        }
    }

    #[test]
    fn any_text_is_a_path_or_none(text in prop_oneof![
        any::<String>().prop_map(String::into_bytes),
        vec(any::<u8>(), 0..20),
        "(\\[[0-9]{1,22}\\]|\\[\"[^\"]{0,5}\"\\]|\\.[a-z]{0,3}|[\\[\\]\"'.*]){0,8}".prop_map(String::into_bytes),
    ], bytes in any_bytes()) {
        let (compiled, inline) = (Path::new(&text), Inline::new(&text));
        prop_assert_eq!(compiled.as_ref().err(), inline.as_ref().err());
        if let (Ok(compiled), Ok(inline)) = (compiled, inline) {
            let (mut cursor, mut same) = (Cursor::new(&bytes), Cursor::new(&bytes));
            let walked = compiled.walk(&mut cursor);
            prop_assert_eq!(walked, inline.walk(&mut same));
            prop_assert!(cursor.position() <= bytes.len());
            if let Err(Stray { walked, .. }) = walked {
                prop_assert!(walked < text.len() && std::str::from_utf8(&text[..walked]).is_ok());
            }
        }
    }

    #[test]
    fn any_bytes_have_a_hash_or_none(bytes in any_bytes(), strings in any::<bool>(), bits in 0u32..8) {
        let hash = if strings { Hash::StrCrc32 } else { Hash::MpCrc32 };
        let mut hasher = Hasher::new(hash, Rules::from_bits(bits));
        let mut cursor = Cursor::new(&bytes);
        if hasher.key(&mut cursor).is_ok() {
            prop_assert_eq!(Cursor::new(&bytes).span().map(<[u8]>::len), Ok(cursor.position()));
        }
    }

    #[test]
    fn raw_arguments_of_any_bytes(bytes in any_bytes()) {
        raw_args::peek_bucket(&bytes, Keyspace::new(3000));
        if let Ok(read) = raw_args::read(bytes.clone(), Keyspace::new(3000)) {
            prop_assert_eq!(Value::sequence(read.payload.bytes()).map(|values| values.len()), Some(2));
        }
        let mut out = Vec::new();
        if raw_args::append_args(&bytes, &mut out).is_ok() {
            prop_assert!(matches!(Value::only(&out), Some(Value::Array(_))));
        }
    }
}

/// An entry of an extended error, its fields right or not.
fn stacked() -> impl Strategy<Value = Value> {
    let text = || prop_oneof![Just(Value::str("CustomError")), vec(any::<u8>(), 0..9).prop_map(Value::Str)];
    (text(), text(), 0u64..9, prop_oneof![error_like(), vec((text(), value()), 0..3).prop_map(Value::Map)])
        .prop_map(|(kind, message, number, fields)| {
            let fields =
                [kind, Value::str("f"), Value::Uint(7), message, Value::Uint(number), Value::Uint(5), fields];
            let keyed = fields.into_iter().enumerate().map(|(key, value)| (Value::Uint(key as u64), value));
            Value::Map(keyed.collect())
        })
}

/// What a verdict holds is well-formed, if the body was one map.
fn judged(kind: u64, body: &[u8]) -> Result<(), TestCaseError> {
    for envelope in [Envelope::Storage, Envelope::Plain] {
        let Ok(verdict) = verdict::judge(envelope, kind, body) else { continue };
        match verdict {
            Verdict::Values { values, count, is_plain } => {
                let values = Value::sequence(values).unwrap_or_default();
                prop_assert_eq!(values.len(), count as usize);
                prop_assert!(!is_plain || !values.iter().any(|value| has_ext(value, &|_| true)));
            }
            Verdict::Failed(error)
            | Verdict::Moved(error)
            | Verdict::NonMaster(error)
            | Verdict::Unusable(error)
            | Verdict::Elsewhere(error) => prop_assert!(Value::only(error.bytes()).is_some()),
        }
    }
    Ok(())
}
