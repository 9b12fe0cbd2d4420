"""Client work: one step of gradient descent on all of a client's examples (FedSGD, McMahan et al. 2017)."""

import tensorflow as tf

import tfp_bfl as bfl


def one_step(model_fn, learning_rate):
    def build():  # called where a client's computation is traced: make variables here
        model = model_fn()

        @tf.function(autograph=False)
        def work(message, examples, seed):
            del seed  # of this client in this round; nothing here is random
            bfl.weights.assign_weights(model, message.weights)
            features = tf.image.convert_image_dtype(examples.features, tf.float32)
            with tf.GradientTape() as tape:
                logits = model(features, training=True)
                nll = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(examples.labels, logits))
            variables = model.trainable_variables
            for variable, gradient in zip(variables, tape.gradient(nll, variables)):
                variable.assign_sub(learning_rate * gradient)
            metrics = bfl.weights.TrainingMetrics(nll=nll, kl=tf.constant(0.0), tempered_elbo=-nll)
            return bfl.weights.ClientResult(bfl.weights.get_weights(model), tf.shape(examples.labels)[0], metrics)

        return work

    return build


if __name__ == "__main__":
    train = bfl.data.load("digits")
    model_fn = lambda: bfl.models.mlp(kind="deterministic", input_shape=train.element_shape, num_classes=10)
    work, step = one_step(model_fn, 0.5), bfl.servers.replace()
    process = bfl.algorithms.compose(model_fn, work, "naive_weighted_average", step)
    result = bfl.simulate(process, train.partition(bfl.data.iid(num_clients=5), seed=0), rounds=10)
    print(f"NLL {result.rounds[0]['nll']:.2f}, after ten rounds {result.rounds[-1]['nll']:.2f}")
