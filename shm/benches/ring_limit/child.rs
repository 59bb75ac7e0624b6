//! A writing process: waits for orders on stdin, answers each with its times.

use std::fs::{File, OpenOptions};
use std::io::{IoSlice, Read, Write};

use clad_shm::{Producer, clock};

use crate::{DATA, GROUP, PROCESSES, Variant, limit, open, payload, sdk};

pub(crate) fn run(args: &[String]) {
    let [index, ring, completion_page, limit, memory, shared, own, daemon @ ..] = args else {
        panic!("seven arguments")
    };
    let mut sdk = daemon.first().map(|address| sdk::Sdk::connect(address));
    let index: usize = index.parse().expect("a number");
    // The drain never sleeps here: any descriptor does as a waker.
    let waker = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("an eventfd");
    let completion_page = File::open(completion_page).expect("the completion page").into();
    let producer = Producer::attach(&open(ring), &completion_page, waker).expect("attached");
    let limit = limit::Ring::attach(open(limit), DATA as usize);
    let memory = limit::Ring::attach(open(memory), PROCESSES * DATA as usize);
    let appending = |path| OpenOptions::new().append(true).create(true).open(path).expect("a file");
    let files = [appending(shared), appending(own)];

    let (mut orders, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    answers.write_all(b"r").and_then(|()| answers.flush()).expect("the parent listens");
    let mut order = [0; 17];
    while orders.read_exact(&mut order).is_ok() {
        let number = |at: usize| u32::from_le_bytes(order[at..at + 4].try_into().expect("four bytes")) as usize;
        let (variant, size, calls) = (Variant::ALL[usize::from(order[0])], number(1), number(5));
        let payloads: Vec<Vec<u8>> = (0..256).map(|call| vec![payload(index, size, call); size]).collect();
        let start = u64::from_le_bytes(order[9..17].try_into().expect("eight bytes"));
        while clock::now() < start {
            std::hint::spin_loop();
        }
        let (from, used) = (clock::now(), processor_ns());
        match (variant, &mut sdk) {
            (Variant::Sdk, Some(sdk)) => (0..calls).for_each(|call| sdk.push(&payloads[call & 255])),
            _ => burst(variant, &payloads, calls, &producer, [&limit, &memory], &files),
        }
        let (used, to) = (processor_ns() - used, clock::now());
        if let (Variant::Sdk, Some(sdk)) = (variant, &sdk) {
            sdk.settle();
        }
        let answer: Vec<u8> = [from, to, used].into_iter().flat_map(u64::to_le_bytes).collect();
        answers.write_all(&answer).and_then(|()| answers.flush()).expect("the parent listens");
    }
}

fn burst(
    variant: Variant,
    payloads: &[Vec<u8>],
    calls: usize,
    producer: &Producer,
    [limit, memory]: [&limit::Ring; 2],
    files: &[File; 2],
) {
    let all = (0..calls).map(|call| payloads[call & 255].as_slice());
    let write = |mut file: &File, bytes: &[u8]| file.write_all(bytes).expect("written");
    match variant {
        Variant::Limit => all.for_each(|bytes| limit.push(bytes, None)),
        Variant::LimitShared => all.for_each(|bytes| memory.push(bytes, None)),
        Variant::LimitSumClock => {
            all.for_each(|bytes| limit.push(bytes, Some((clock::now(), crc_fast::crc32_iscsi(bytes)))));
        }
        Variant::Ring | Variant::RingDrained => all.for_each(|bytes| {
            producer.push(&[bytes], 1).expect("the burst fits");
        }),
        Variant::Sdk => unreachable!("only where there is a daemon"),
        Variant::Write => all.for_each(|bytes| write(&files[0], bytes)),
        Variant::WriteOwn => all.for_each(|bytes| write(&files[1], bytes)),
        Variant::Writev64 => {
            for group in 0..calls / GROUP {
                let slices: Vec<IoSlice<'_>> =
                    (0..GROUP).map(|call| IoSlice::new(&payloads[(group * GROUP + call) & 255])).collect();
                let bytes: usize = slices.iter().map(|slice| slice.len()).sum();
                let done = (&files[0]).write_vectored(&slices).expect("written");
                assert_eq!(done, bytes, "a short write");
            }
        }
    }
}

pub(crate) fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
