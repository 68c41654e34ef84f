"""Who makes the shards of a stage: threads of its process, processes of its machine, or workers on Ray.

A stage that is cut into shards says how one is made (`maker.ShardMaker`), and `build.build_in_shards` hands that to
workers of the configured kind. They write into the staging folder of the one artifact; what is finished there is
skipped by the next session, and the builder publishes.

threads.py        threads, which share what the maker opened
processes.py      processes of this machine, each with a model, and a GPU, of its own
shard_queue.py    the shards that wait for them
on_ray.py         the workers on Ray: started, given shards, replaced where they are lost
ray_cluster.py    a cluster: a running one, or one for this stage alone
ray_devices.py    whether the configuration says where workers on Ray compute
ray_worker.py     what runs in a worker's process
ray_ledger.py     the ledger of completions, which one process keeps for workers on other machines
"""
